// The listAgents tool: a model's look at all its sub-agents at once.
import { z } from 'zod'
import type { JobState } from './job-state.ts'

export const listAgentsInputSchema = z.strictObject({
  live: z.boolean().default(true).describe('only those that have not ended'),
  limit: z.number().int().min(1).max(50).default(20),
})
export type ListAgentsInput = z.infer<typeof listAgentsInputSchema>

export type ListAgentsOutput = {
  /** Newest first. */
  agents: {
    jobId: string
    /** group/handle */
    bot: string
    state: JobState
    /** Model calls made so far. */
    step: number
    /** Since it was spawned. */
    ageSeconds: number
    /** The end of what it said last: at most 300 characters. */
    lastText?: string
  }[]
}
