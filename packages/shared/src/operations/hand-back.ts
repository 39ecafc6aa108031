// A running job goes back to its queue with its journal: handed back by its worker, or taken from a lost one. An inline job
// whose process is lost has no queue to go to: it ends.
import { REASONS } from '../contracts/reason.ts'
import { type AgentJob, type LostClaim, makeLostPending, makePending, type ReleasedClaim } from '../db/agent-jobs.ts'
import type { EventKind } from '../db/events.ts'
import { tellDelivery } from './deliver.ts'
import { type AbortWish, endUnheld, wishOf } from './finish-agent.ts'
import { lockFreeTrees, lockTree, transact, type TransactRuntime } from './transact.ts'

/**
 * Makes the job pending and tells of its next delivery. A job with an abort wish ends instead of going round again.
 * @returns false when the claim was not there any more
 */
export async function handBack(
  runtime: TransactRuntime,
  job: Pick<AgentJob, 'id' | 'rootJobId'>,
  from: ReleasedClaim | LostClaim,
  kind: Extract<EventKind, 'handed-back' | 'worker-lost'>,
): Promise<boolean> {
  return transact(runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    const pending = await makePending(tx.db, job.id, from)
    if (pending === null) return false
    tx.record({
      jobId: job.id,
      kind,
      ...('lostWorkerId' in from ? { finding: 'job_of_lost_worker' } : {}),
      data: { attempt: pending.attempt, ...('lostWorkerId' in from ? { workerId: from.lostWorkerId } : {}) },
    })
    const wish = wishToEnd(pending, kind)
    if (wish === undefined) tellDelivery(tx, pending, 'hand-over')
    else await endUnheld(tx, [pending], wish)
    return true
  })
}

/**
 * Makes the jobs of a lost worker pending together, so that the last of a hundred need not wait for a hundred
 * transactions. Left for `handBack` are those whose tree somebody holds right now, and those that have to end.
 */
export async function handBackTogether(
  runtime: TransactRuntime,
  jobs: readonly Pick<AgentJob, 'rootJobId'>[],
  workerId: string,
): Promise<void> {
  await transact(runtime, async (tx) => {
    const rootJobIds = await lockFreeTrees(tx, [...new Set(jobs.map((job) => job.rootJobId))])
    for (const job of await makeLostPending(tx.db, { workerId, rootJobIds, maxCrashes: MAX_CRASHES })) {
      tx.record({
        jobId: job.id,
        kind: 'worker-lost',
        finding: 'job_of_lost_worker',
        data: { attempt: job.attempt, workerId },
      })
      tellDelivery(tx, job, 'hand-over')
    }
  })
}

/** A job that somebody wants to end, that ran only in a lost process, or that has ended too many workers, does not go round again. */
function wishToEnd(job: AgentJob, kind: EventKind): AbortWish | undefined {
  if (job.abortRequestedAt !== null) return wishOf(job)
  if (kind === 'worker-lost' && job.runner === 'inline') return { by: null, reason: 'worker_lost', text: null }
  if (job.crashes < MAX_CRASHES) return undefined
  const text = `${REASONS.worker_crash.sentence} (${job.crashes} times in a row)`
  return { by: null, reason: 'worker_crash', text }
}

/** So many workers may be lost with a job since its last stored step; then it is quarantined (STUCK-18). */
export const MAX_CRASHES = 5
