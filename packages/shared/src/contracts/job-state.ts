// The states of an agent job, and the one table of how they may change. `TRANSITIONS` is data: everything else here
// derives from it. The statements that write a state stand in db/agent-jobs.ts, those of the common end and of a retry with
// their operations, each with its guard in the `where`.
import { z } from 'zod'

export const JOB_STATES = ['pending', 'running', 'completed', 'failed', 'aborted'] as const
export const jobStateSchema = z.enum(JOB_STATES)
export type JobState = z.infer<typeof jobStateSchema>

/** What a running job that holds no worker waits for. */
export const WAITING_ON = ['children', 'inbox', 'retry'] as const
export const waitingOnSchema = z.enum(WAITING_ON)
export type WaitingOn = z.infer<typeof waitingOnSchema>

/**
 * From each state the states it may change into. `running → pending` hands a job back, wakes it, or takes it from a
 * lost worker. `failed | aborted → pending` happens only by an operator's retry, with `generation + 1`.
 */
export const TRANSITIONS = {
  pending: ['running', 'completed', 'failed', 'aborted'],
  running: ['pending', 'completed', 'failed', 'aborted'],
  completed: [],
  failed: ['pending'],
  aborted: ['pending'],
} as const satisfies Record<JobState, readonly JobState[]>

export const TERMINAL_STATES = ['completed', 'failed', 'aborted'] as const satisfies readonly JobState[]
export type TerminalState = (typeof TERMINAL_STATES)[number]

/** Live means: not ended yet. */
export const LIVE_STATES = ['pending', 'running'] as const satisfies readonly JobState[]

export function isTerminal(state: JobState): state is TerminalState {
  return (TERMINAL_STATES as readonly JobState[]).includes(state)
}

/** The states from which `target` may be written by the job's own run (an operator's retry is the exception). */
export function sourcesOf(target: JobState): JobState[] {
  return JOB_STATES.filter(
    (source) => !isTerminal(source) && (TRANSITIONS[source] as readonly JobState[]).includes(target),
  )
}

/** The state as others see it: a job that was claimed before and is about to be claimed again is running. */
export function projectState(job: { state: JobState; attempt: number }): JobState {
  return job.state === 'pending' && job.attempt > 0 ? 'running' : job.state
}
