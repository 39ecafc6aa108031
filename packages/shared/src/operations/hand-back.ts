// A running job goes back to the queue with its journal: handed back by its worker, or taken from a lost one.
import { type AgentJob, makePending } from '../db/agent-jobs.ts'
import type { EventKind } from '../db/events.ts'
import { tellDelivery } from './deliver.ts'
import { endUnheld, wishOf } from './finish-agent.ts'
import { lockTree, transact, type TransactRuntime } from './transact.ts'

/**
 * Makes the job pending and tells of its next delivery. A job with an abort wish ends instead of going round again.
 * @returns false when the claim was not there any more
 */
export async function handBack(
  runtime: TransactRuntime,
  job: Pick<AgentJob, 'id' | 'rootJobId'>,
  from: { token: string } | { lostWorkerId: string },
  kind: Extract<EventKind, 'handed-back' | 'worker-lost'>,
): Promise<boolean> {
  return transact(runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    const pending = await makePending(tx.db, job.id, from)
    if (pending === null) return false
    tx.record({
      jobId: job.id,
      kind,
      data: { attempt: pending.attempt, ...('lostWorkerId' in from ? { workerId: from.lostWorkerId } : {}) },
    })
    if (pending.abortRequestedAt === null) tellDelivery(tx, pending, 'wake')
    else await endUnheld(tx, [pending], wishOf(pending))
    return true
  })
}
