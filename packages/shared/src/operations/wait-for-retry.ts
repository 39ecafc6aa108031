import { type AgentJob, type Claim, type ReleasedClaim, storeWaitingJob } from '../db/agent-jobs.ts'
import { lockTree, transact, type TransactRuntime } from './transact.ts'

export interface RetryWait {
  forMs: number
  because: string
  /** Whether it counts among the tries that its step may have. */
  counted: boolean
}

/**
 * Makes a running job wait for another try of its step, holding nothing meanwhile. The reconciler wakes it.
 * @returns false when the claim was lost, or somebody wants the job's end: then it does not wait
 */
export async function waitForRetry(
  runtime: TransactRuntime,
  job: Pick<AgentJob, 'rootJobId'>,
  claim: Claim & ReleasedClaim,
  { forMs, because, counted }: RetryWait,
): Promise<boolean> {
  return transact(runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    const stored = await storeWaitingJob(tx.db, claim, { on: 'retry', forMs, countsAsRetry: counted })
    if (stored) tx.record({ jobId: claim.jobId, kind: 'waiting', data: { on: 'retry', forMs, because } })
    return stored
  })
}
