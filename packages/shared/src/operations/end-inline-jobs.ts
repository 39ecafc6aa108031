// A process that runs inline jobs closes: what has not ended by then cannot go on elsewhere, and ends with its journal.
import { findUnheldInlineJobs } from '../db/inline-jobs.ts'
import { endUnheld } from './finish-agent.ts'
import { lockTree, transact, type TransactRuntime } from './transact.ts'

/** Ends the worker's inline jobs that it does not hold any more, as `aborted_by_shutdown`. Answers how many these were. */
export async function endInlineJobs(runtime: TransactRuntime, workerId: string): Promise<number> {
  const jobs = await findUnheldInlineJobs(runtime.database, workerId)
  for (const { id, rootJobId } of jobs) {
    await transact(runtime, async (tx) => {
      await lockTree(tx, rootJobId)
      const job = await tx.db.agentJob.findUnique({ where: { id } })
      if (job !== null) await endUnheld(tx, [job], { by: null, reason: 'aborted_by_shutdown', text: null })
    })
  }
  return jobs.length
}
