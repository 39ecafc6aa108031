// A message to a job that runs: read before the job's next model call, once, in the order of their coming.
import { jobNotFound } from '../contracts/check.ts'
import { isTerminal } from '../contracts/job-state.ts'
import type { MessageInput, MessageOptions, MessageReceipt } from '../contracts/message.ts'
import { newId } from '../ids.ts'
import type { Runtime } from '../runtime.ts'
import { createWaker } from '../waker.ts'
import { findReadableJob } from './check-agent.ts'
import { messageKey } from './inbox-key.ts'
import type { JobReader } from './readable-jobs.ts'
import { recordRefusal, refusedEvent } from './refusals.ts'
import { insertSteer } from './steer-agent.ts'
import { lockTree, transact } from './transact.ts'

/** How often a receipt is looked at while somebody waits for it. */
const LOOK_EVERY_MS = 250

/**
 * Not accepted by a job that has ended, and by one that is not the reader's, which is like one that does not exist. A
 * message with the id of an earlier one is that one: the answer is its receipt.
 */
export async function messageAgent(
  runtime: Runtime,
  reader: JobReader,
  { jobId, message }: MessageInput,
  actorId: string,
  { messageId, waitSeconds = 0, signal }: Partial<MessageOptions> & { signal?: AbortSignal } = {},
): Promise<MessageReceipt> {
  const job = await findReadableJob(runtime, reader, jobId)
  if (job === null) return refuseUnknown(runtime, reader, jobId, actorId)
  const key = messageKey(job.id, messageId ?? newId())
  if ((await readReceipt(runtime, key)) === undefined) {
    const taken = await transact(runtime, async (tx) => {
      await lockTree(tx, job.rootJobId)
      const steer = await insertSteer(tx, job.id, { key, text: message, actorId })
      if (steer === null) tx.record(refusedEvent({ jobId: job.id, actorId, what: 'message', error: ENDED }))
      return steer
    })
    if (taken === null) return { accepted: false, reason: ENDED }
  }
  return waitForReceipt(runtime, key, { limitMs: waitSeconds * 1_000, ...(signal === undefined ? {} : { signal }) })
}

const ENDED = 'The job has ended; nobody reads messages to it any more.'

/** Only a running job's own history says that it asked for what is not below it. */
async function refuseUnknown(
  runtime: Runtime,
  reader: JobReader,
  jobId: string,
  actorId: string,
): Promise<MessageReceipt> {
  const { error } = jobNotFound(jobId)
  if ('runningJobId' in reader)
    await recordRefusal(runtime, { jobId: reader.runningJobId, actorId, what: 'message', error })
  return { accepted: false, reason: error }
}

async function waitForReceipt(
  runtime: Runtime,
  key: string,
  { limitMs, signal }: { limitMs: number; signal?: AbortSignal },
): Promise<MessageReceipt> {
  const until = performance.now() + limitMs
  const waker = createWaker()
  signal?.addEventListener('abort', waker.wake)
  try {
    for (;;) {
      const receipt = (await readReceipt(runtime, key)) ?? { accepted: true }
      const leftMs = until - performance.now()
      if (receipt.deliveredAtStep !== undefined || receipt.reason !== undefined || leftMs <= 0) return receipt
      if (signal?.aborted === true) return receipt
      await waker.pause(Math.min(leftMs, LOOK_EVERY_MS))
    }
  } finally {
    signal?.removeEventListener('abort', waker.wake)
  }
}

/** What became of a message; undefined when there is none with this key. */
async function readReceipt({ database }: Runtime, key: string): Promise<MessageReceipt | undefined> {
  const item = await database.inboxItem.findUnique({ where: { key } })
  if (item === null) return undefined
  if (item.consumedAtStep !== null) return { accepted: true, deliveredAtStep: item.consumedAtStep }
  const receiver = await database.agentJob.findUnique({ where: { id: item.jobId }, select: { state: true } })
  return receiver !== null && !isTerminal(receiver.state)
    ? { accepted: true }
    : { accepted: true, reason: 'The job ended before it had read the message.' }
}
