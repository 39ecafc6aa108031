// An abort is a durable wish for the whole subtree first, and a message second: written in one transaction, then
// signalled. What no worker holds ends in that transaction.
import { type AbortInput, type AbortOutput } from '../contracts/abort.ts'
import { jobNotFound } from '../contracts/check.ts'
import { isTerminal, projectState } from '../contracts/job-state.ts'
import type { AgentJob } from '../db/agent-jobs.ts'
import type { Runtime } from '../runtime.ts'
import { findReadableJob } from './check-agent.ts'
import { type AbortWish, endSubtree, endUnheld, storeWish } from './finish-agent.ts'
import type { JobReader } from './readable-jobs.ts'
import { recordRefusal } from './refusals.ts'
import { lockTree, transact } from './transact.ts'
import { waitForAgent } from './wait-for-agent.ts'

/** How long the answer waits for a running job to obey. */
const OBEY_LIMIT_MS = 5_000

/** Aborts a job and everything below it. The answer says what is true after the call. */
export async function abortAgent(
  runtime: Runtime,
  reader: JobReader,
  input: AbortInput,
  actorId: string,
): Promise<AbortOutput> {
  const found = await findReadableJob(runtime, reader, input.jobId)
  const byParent = 'runningJobId' in reader
  if (found === null) {
    const unknown = jobNotFound(input.jobId)
    // Only a running job's own history says that it asked for what is not below it.
    if (byParent)
      await recordRefusal(runtime, { jobId: reader.runningJobId, actorId, what: 'abort', error: unknown.error })
    return { ...unknown, abortedDescendants: 0 }
  }
  const { job, abortedDescendants } = await requestAbort(runtime, found, {
    by: actorId,
    reason: byParent ? 'aborted_by_parent' : 'aborted_by_user',
    text: input.reason ?? null,
  })
  const ended = isTerminal(job.state) ? job : await waitForAgent(runtime, job.id, { limitMs: OBEY_LIMIT_MS })
  return describeAbort(ended ?? job, isTerminal(found.state), abortedDescendants)
}

/** Stores the wish for a job and its subtree, and answers the job as it stands after that. */
export async function requestAbort(
  runtime: Runtime,
  job: Pick<AgentJob, 'id' | 'rootJobId'>,
  wish: AbortWish,
): Promise<{ job: AgentJob; abortedDescendants: number }> {
  return transact(runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    const before = await tx.db.agentJob.findUniqueOrThrow({ where: { id: job.id } })
    if (isTerminal(before.state)) return { job: before, abortedDescendants: 0 }
    // The job's own wish comes first, so that the end of its children does not wake it; its end comes last, since it takes
    // its subtree along, which would count that as its own doing.
    const wished = await storeWish(tx, [before], wish)
    const abortedDescendants = await endSubtree(tx, job, { ...wish, reason: 'aborted_by_parent' })
    await endUnheld(tx, wished, wish)
    return { job: await tx.db.agentJob.findUniqueOrThrow({ where: { id: job.id } }), abortedDescendants }
  })
}

function describeAbort(job: AgentJob, hadEnded: boolean, abortedDescendants: number): AbortOutput {
  const output: AbortOutput = {
    jobId: job.id,
    state: projectState(job),
    abortedDescendants,
    ...(job.result === null ? {} : { partialResult: job.result }),
  }
  if (hadEnded) return { ...output, note: `The job had ended before: ${job.state}. Nothing was changed.` }
  if (!isTerminal(job.state))
    return { ...output, note: 'The wish to abort is stored; the job has not obeyed yet and will.' }
  if (job.state !== 'aborted') return { ...output, note: `The job ended as ${job.state} before it could be aborted.` }
  return output
}
