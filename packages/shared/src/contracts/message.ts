import { z } from 'zod'

/** UTF-16 units of a message to a running job. */
const MAX_LENGTH = 100_000

export const messageInputSchema = z.strictObject({
  jobId: z.string().max(200),
  message: z.string().min(1).max(MAX_LENGTH).describe('what the sub-agent reads before its next step'),
})
export type MessageInput = z.infer<typeof messageInputSchema>

/** What became of a message to a job. */
export type MessageReceipt = {
  /** True: it is stored, and read before the job's next model call. */
  accepted: boolean
  /** The step that has read it, where that is known. */
  deliveredAtStep?: number
  /** Why it was not accepted. */
  reason?: string
}
