// Steers: messages to a job that runs, read at its next step.
import { isTerminal } from '../contracts/job-state.ts'
import type { AgentJob } from '../db/agent-jobs.ts'
import { appendMessage } from '../db/convos.ts'
import { encodeStored } from '../db/stored-value.ts'
import { messageIdOfInboxItem } from './inbox-key.ts'
import { lockConvo, type Tx } from './transact.ts'
import { wakeAgent } from './wake-agent.ts'

export interface Steer {
  key: string
  text: string
  actorId: string
}

/**
 * Puts a message into a live job's inbox; it is read at the job's next step. While the job waits for one sync child that
 * was spawned with `steers: 'forward'`, the message is that child's. Called under the tree's lock.
 * @returns the job that got it, or null when the job has ended: then nothing was written
 */
export async function insertSteer(tx: Tx, jobId: string, steer: Steer): Promise<{ receiverId: string } | null> {
  const job = await tx.db.agentJob.findUnique({ where: { id: jobId } })
  if (job === null || isTerminal(job.state)) return null
  const receiver = await findReceiver(tx, job)
  const parts = encodeStored([{ type: 'text', text: steer.text }])
  const { count } = await tx.db.inboxItem.createMany({
    data: [{ jobId: receiver.id, key: steer.key, kind: 'steer', actorId: steer.actorId, parts }],
    skipDuplicates: true,
  })
  if (count === 0) return { receiverId: receiver.id }
  tx.record({ jobId, kind: 'steered', actorId: steer.actorId })
  if (receiver.id !== jobId) {
    tx.record({ jobId: receiver.id, kind: 'steered', actorId: steer.actorId, data: { forwardedFrom: jobId } })
    await keepForwarded(tx, job, steer)
  }
  if (receiver.waitingOn === 'inbox') await wakeAgent(tx, receiver.id, 'a steer')
  return { receiverId: receiver.id }
}

/** A parent with several sync children at work keeps the message: nobody said whose it is. */
async function findReceiver(tx: Tx, job: AgentJob): Promise<AgentJob> {
  const children = await tx.db.agentJob.findMany({
    where: { parentJobId: job.id, mode: 'sync', state: { in: ['pending', 'running'] } },
    take: 2,
  })
  const [child] = children
  if (children.length !== 1 || child === undefined || child.steers !== 'forward') return job
  return findReceiver(tx, child)
}

/** What was said in a convo belongs to its history, although the turn's own job will not read it. */
async function keepForwarded(tx: Tx, job: AgentJob, steer: Steer): Promise<void> {
  await lockConvo(tx, job.convoId)
  await appendMessage(tx.db, {
    convoId: job.convoId,
    ownerId: job.ownerId,
    role: 'user',
    parts: [{ type: 'text', text: steer.text }],
    metadata: { kind: 'steer' },
    jobId: job.id,
    clientMessageId: messageIdOfInboxItem(job.convoId, steer.key),
  })
}
