// What was asked of a job, or by it, and refused: a line of its history, with who asked. A job that is not the asker's gets
// none, so that nobody leaves a trace in what they may not see.
import type { NewEvent } from '../db/events.ts'
import { headOf } from '../contracts/text.ts'
import { transact, type TransactRuntime } from './transact.ts'

export interface RefusedRequest {
  /** Whose history it belongs to: the running job that asked, else the job of which it was asked. */
  jobId: string
  actorId: string
  what: 'spawn' | 'message' | 'abort' | 'retry'
  error: string
  reason?: string
  /** The step of the running job that asked. */
  step?: number
}

const MAX_ERROR_LENGTH = 2_000

export function refusedEvent({ jobId, actorId, what, reason, error, step }: RefusedRequest): NewEvent {
  const data = {
    what,
    ...(step === undefined ? {} : { step }),
    ...(reason === undefined ? {} : { reason }),
    error: headOf(error, MAX_ERROR_LENGTH),
  }
  return { jobId, kind: 'refused', actorId, data }
}

/** The same as a transaction of its own, for what is refused outside one. */
export async function recordRefusal(runtime: TransactRuntime, request: RefusedRequest): Promise<void> {
  await transact(runtime, async (tx) => tx.record(refusedEvent(request)))
}
