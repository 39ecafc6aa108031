import { encodeStored } from '../db/stored-value.ts'
import type { Tx } from './transact.ts'

/**
 * Puts a message into a live job's inbox; it is read at the job's next step. Called under the tree's lock.
 * @returns false when the job has ended: nothing was written
 */
export async function insertSteer(
  tx: Tx,
  jobId: string,
  steer: { key: string; text: string; actorId: string },
): Promise<boolean> {
  const job = await tx.db.agentJob.findUnique({ where: { id: jobId }, select: { state: true } })
  if (job === null || (job.state !== 'pending' && job.state !== 'running')) return false
  await tx.db.inboxItem.createMany({
    data: [
      {
        jobId,
        key: steer.key,
        kind: 'steer',
        actorId: steer.actorId,
        parts: encodeStored([{ type: 'text', text: steer.text }]),
      },
    ],
    skipDuplicates: true,
  })
  tx.record({ jobId, kind: 'steered', actorId: steer.actorId })
  tx.nudgeWorkers([jobId])
  return true
}
