// A wake: the delivery that ends a wait. Called under the tree's lock.
import type { JobFinding } from '../contracts/finding.ts'
import { type AgentJob, countLiveSyncChildren, makePending } from '../db/agent-jobs.ts'
import { tellDelivery } from './deliver.ts'
import type { Tx } from './transact.ts'

/** Ends a job's wait, if it is waiting: a job is woken once, by whoever comes first. */
export async function wakeAgent(tx: Tx, jobId: string, because: string, finding?: JobFinding): Promise<boolean> {
  const woken = await makePending(tx.db, jobId, 'wait')
  if (woken === null) return false
  tx.record({ jobId, kind: 'woken', ...(finding === undefined ? {} : { finding }), data: { because } })
  tellDelivery(tx, woken, 'wake')
  return true
}

/** After the end of a sync child: wakes its parent when this was the last one that the parent's step waits for. */
export async function wakeParentOf(tx: Tx, child: AgentJob): Promise<void> {
  if (child.parentJobId === null || child.parentStep === null || child.mode !== 'sync') return
  const live = await countLiveSyncChildren(tx.db, child.parentJobId, child.parentStep)
  if (live > 0) return
  const parent = await tx.db.agentJob.findUnique({
    where: { id: child.parentJobId },
    select: { waitingOn: true, state: true },
  })
  if (parent?.state === 'running' && parent.waitingOn === 'children') await wakeAgent(tx, child.parentJobId, 'children')
}
