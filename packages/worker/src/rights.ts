// The right to run as the job's owner, looked at again before each tool call: what a delegate or an admin may start stops
// when that right is taken back.
import { rightsStand } from '@offshoot/shared/db/users'
import { untilPostgresAnswers } from './persist.ts'
import type { Attempt } from './run-agent.ts'

/** Stops the run when the right was taken back. @throws RunStopped */
export async function stopWithoutRight({ runtime, job, stopSwitch }: Attempt): Promise<void> {
  if (job.grant === 'self') return
  const about = { stopSwitch, logger: runtime.logger, jobId: job.id }
  if (await untilPostgresAnswers(() => rightsStand(runtime.database, job), about)) return
  stopSwitch.stop({ kind: 'right-withdrawn' })
  stopSwitch.signal.throwIfAborted()
}
