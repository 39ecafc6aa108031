// A message to a job that runs: it is read before the job's next step.
import { jobNotFound } from '../contracts/check.ts'
import type { MessageInput, MessageReceipt } from '../contracts/message.ts'
import { newId } from '../ids.ts'
import type { Runtime } from '../runtime.ts'
import { findReadableJob } from './check-agent.ts'
import type { JobReader } from './readable-jobs.ts'
import { insertSteer } from './steer-agent.ts'
import { lockTree, transact } from './transact.ts'

/** Not accepted by a job that has ended, and by one that is not the reader's, which is like one that does not exist. */
export async function messageAgent(
  runtime: Runtime,
  reader: JobReader,
  { jobId, message }: MessageInput,
  actorId: string,
): Promise<MessageReceipt> {
  const job = await findReadableJob(runtime, reader, jobId)
  if (job === null) return { accepted: false, reason: jobNotFound(jobId).error }
  const steer = { key: `message:${newId()}`, text: message, actorId }
  return transact(runtime, async (tx): Promise<MessageReceipt> => {
    await lockTree(tx, job.rootJobId)
    if (await insertSteer(tx, job.id, steer)) return { accepted: true }
    return { accepted: false, reason: 'The job has ended; nobody reads messages to it any more.' }
  })
}
