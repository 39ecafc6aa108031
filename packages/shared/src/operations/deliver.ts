// The outbox entry that brings a pending job to a worker.
import { deliveryId, PRIORITY_BASE, PRIORITY_FIRST, PRIORITY_MAX } from '../contracts/delivery.ts'
import type { AgentJob } from '../db/agent-jobs.ts'
import type { NewOutboxEntry } from '../db/outbox.ts'
import type { Delivery } from '../queue/delivery-queue.ts'
import type { Tx } from './transact.ts'

type DeliveredJob = Pick<
  AgentJob,
  'id' | 'lane' | 'botLabel' | 'ownerId' | 'parentJobId' | 'depth' | 'deliverySeq' | 'priority' | 'runner' | 'workerId'
>

type Urgency = 'new' | 'wake' | 'hand-over'

/** Tells of a pending job's delivery. */
export function tellDelivery(tx: Tx, job: DeliveredJob, urgency: Urgency): void {
  tx.tell(deliveryEntry(job, urgency))
}

export function deliveryEntry(job: DeliveredJob, urgency: Urgency): NewOutboxEntry {
  return {
    jobId: job.id,
    kind: 'delivery',
    key: `delivery:${deliveryId(job.id, job.deliverySeq)}`,
    payload: { ...deliveryOf(job, urgency), ...inlineWorkerOf(job) },
  }
}

export function deliveryOf(job: DeliveredJob, urgency: Urgency): Delivery {
  return {
    lane: job.lane,
    name: job.botLabel,
    priority: priorityOf(job, urgency),
    data: {
      agentJobId: job.id,
      deliverySeq: job.deliverySeq,
      owner: job.ownerId,
      parent: job.parentJobId,
      depth: job.depth,
    },
  }
}

/**
 * A hand-over comes first: its job has just had a slot. All else takes its place among the jobs of its owner, so that a
 * flood of one user's, new or waking, never stands before another's single job. A job that waited comes before new ones,
 * but for those of users who have far fewer.
 */
function priorityOf({ priority }: DeliveredJob, urgency: Urgency): number {
  const place = Math.min(priority, PRIORITY_MAX)
  switch (urgency) {
    case 'hand-over':
      return PRIORITY_FIRST
    case 'wake':
      return Math.max(PRIORITY_FIRST, place - PRIORITY_BASE + PRIORITY_FIRST)
    case 'new':
      return place
  }
}

/** In whose process the delivery of an inline job is. */
export function inlineWorkerOf({ runner, workerId }: Pick<AgentJob, 'runner' | 'workerId'>): { workerId?: string } {
  return runner === 'inline' && workerId !== null ? { workerId } : {}
}

/** The priority of a new job's delivery: behind as many others as its owner has unfinished jobs, plus what the spawn said. */
export function priorityOfNewJob(unfinishedJobsOfOwner: number, spawnPriority: number): number {
  return Math.min(PRIORITY_BASE + unfinishedJobsOfOwner + spawnPriority, PRIORITY_MAX)
}
