import { type AgentJob, type Claim, storeWaitingJob } from '../db/agent-jobs.ts'
import { lockTree, transact, type TransactRuntime } from './transact.ts'

/**
 * Makes a running job wait for another try of its step, holding nothing meanwhile. The reconciler wakes it.
 * @returns false when the claim was lost, or somebody wants the job's end: then it does not wait
 */
export async function waitForRetry(
  runtime: TransactRuntime,
  job: Pick<AgentJob, 'rootJobId'>,
  claim: Claim,
  wait: { forMs: number; because: string },
): Promise<boolean> {
  return transact(runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    const stored = await storeWaitingJob(tx.db, claim, { on: 'retry', forMs: wait.forMs })
    if (stored) tx.record({ jobId: claim.jobId, kind: 'waiting', data: { on: 'retry', ...wait } })
    return stored
  })
}
