// What an attempt has to tell after its claim is gone: the job is another attempt's by now, or has ended. It is kept as a line
// of the job's history, so that what was done and paid for can be seen, and changes nothing else.
import type { TerminalState } from '@offshoot/shared/contracts/job-state'
import { headOf } from '@offshoot/shared/contracts/text'
import { insertEventOnce } from '@offshoot/shared/db/events'
import type { Attempt } from './run-agent.ts'

/** Characters of a result that are kept. */
const RESULT_LENGTH = 2_000

export interface LateResult {
  /** How the attempt would have ended the job; `cut`: it was stopped before it could say. */
  outcome: TerminalState | 'cut'
  reason?: string
  result: string | null
}

/** Keeps it, once an attempt. One that has neither said nor spent anything that is not stored has nothing to keep. */
export async function keepLateResult({ runtime, job, cutCalls }: Attempt, late: LateResult): Promise<void> {
  const { attempt, generation } = job
  const usage = cutCalls.tokens()
  if (late.outcome === 'cut' && late.result === null && usage === undefined) return
  runtime.logger.warn(
    { jobId: job.id, attempt, outcome: late.outcome, reason: late.reason },
    'the result of an attempt came too late; it is kept in the history and changes nothing',
  )
  const data = {
    ...late,
    attempt,
    generation,
    ...(late.result === null ? {} : { result: headOf(late.result, RESULT_LENGTH) }),
    ...(usage === undefined ? {} : { usage }),
  }
  await insertEventOnce(runtime.database, { jobId: job.id, kind: 'late-result', data }, { same: { attempt } })
}
