import { z } from 'zod'
import type { JobState } from './job-state.ts'

export const abortInputSchema = z.strictObject({
  jobId: z.string().max(200),
  reason: z.string().max(2_000).optional(),
})
export type AbortInput = z.infer<typeof abortInputSchema>

export type AbortOutput = {
  jobId: string
  /** What is true after the call: `aborted`, `running` (the wish is stored and not yet obeyed), or the state the job had already reached. */
  state: JobState
  partialResult?: string
  /** How many descendants this call aborted or asked to stop. */
  abortedDescendants: number
  /** Says what happened where the state alone does not. */
  note?: string
  error?: string
}
