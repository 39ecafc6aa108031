import type { UIMessage } from 'ai'
import { z } from 'zod'
import type { SubtreeTotals } from './agent-job.ts'
import type { JobState, WaitingOn } from './job-state.ts'
import type { Reason } from './reason.ts'
import type { Usage } from './usage.ts'

export const checkInputSchema = z.strictObject({
  jobId: z.string().max(200),
  includePartial: z.boolean().default(false).describe('also the messages so far and the live text'),
  waitSeconds: z
    .number()
    .min(0)
    .max(60)
    .default(0)
    .describe('wait on the server until the job ends or this time is up'),
})
export type CheckInput = z.infer<typeof checkInputSchema>

export interface JobProgress {
  /** Model calls made so far. */
  step: number
  maxSteps: number
  currentTool?: string
  /** The live text of the running step, at most its last 2,000 characters. */
  lastText?: string
  /** Of a job that is to be taken by a worker: 1 is the next one of its lane. */
  queuePosition?: number
  /** What holds up a job that is to be taken by a worker: none serves its lane, or the lane's queue is paused. */
  note?: string
}

export type CheckOutput = {
  jobId: string
  state: JobState
  reason?: Reason
  waitingOn?: WaitingOn
  result?: string
  /** True where `result` is only the head and tail of the job's result, as a running job gets it. */
  resultTruncated?: true
  messages?: UIMessage[]
  /** The job's own. */
  usage?: Usage
  /** The job's own, as programs get it; null is unknown. */
  costUsd?: number | null
  /** Of the job and all its descendants, as programs get it. */
  subtree?: SubtreeTotals
  steps?: number
  error?: string
  partial?: boolean
  progress?: JobProgress
  /** Of the tool: the model has read the same answer about this job before. */
  unchanged?: true
  /** Of the tool, with `unchanged`: when to look again at a job that has not ended. */
  lookAgainSeconds?: number
}

/** The same answer for a job that does not exist and for one that is not the caller's. */
export function jobNotFound(jobId: string): { jobId: string; state: 'failed'; error: string } {
  return { jobId, state: 'failed', error: `Job ${jobId} not found.` }
}

/** Whether an answer about a job is `jobNotFound`: a job that exists and failed has a reason. */
export function isJobNotFound(answer: { jobId: string; state: JobState; reason?: Reason; error?: string }): boolean {
  return answer.state === 'failed' && answer.reason === undefined && answer.error === jobNotFound(answer.jobId).error
}
