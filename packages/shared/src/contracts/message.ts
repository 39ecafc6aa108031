import { z } from 'zod'

/** UTF-16 units of a message to a running job. */
const MAX_LENGTH = 100_000

export const messageInputSchema = z.strictObject({
  jobId: z.string().max(200),
  message: z.string().min(1).max(MAX_LENGTH).describe('what the sub-agent reads before its next step'),
})
export type MessageInput = z.infer<typeof messageInputSchema>

/** What a program may say besides. */
export const messageOptionsSchema = z.strictObject({
  messageId: z
    .string()
    .min(1)
    .max(200)
    .optional()
    .describe('makes a repeat the same message, and its answer the receipt as it is then'),
  waitSeconds: z.coerce
    .number()
    .min(0)
    .max(60)
    .default(0)
    .describe('answers when the message has been read, or the job has ended, or the time is up'),
})
export type MessageOptions = z.infer<typeof messageOptionsSchema>

/** What became of a message to a job. */
export const messageReceiptSchema = z.object({
  /** True: it is stored, and read before the job's next model call. */
  accepted: z.boolean().describe('stored, to be read before the next model call of the job'),
  /** The step that has read it; absent while it waits. */
  deliveredAtStep: z.number().int().optional().describe('the step whose model call has read it; the first is 0'),
  /** Why it was not accepted, or that the job ended before it had read it. */
  reason: z.string().optional().describe('why it was not accepted, or never read'),
})
export type MessageReceipt = z.infer<typeof messageReceiptSchema>
