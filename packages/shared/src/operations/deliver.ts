// The outbox entry that brings a pending job to a worker.
import { deliveryId, PRIORITY_BASE, PRIORITY_MAX, PRIORITY_OF_WAKE } from '../contracts/delivery.ts'
import type { AgentJob } from '../db/agent-jobs.ts'
import type { NewOutboxEntry } from '../db/outbox.ts'
import type { Delivery } from '../queue/delivery-queue.ts'
import type { Tx } from './transact.ts'

type DeliveredJob = Pick<
  AgentJob,
  'id' | 'lane' | 'botLabel' | 'ownerId' | 'parentJobId' | 'depth' | 'deliverySeq' | 'priority' | 'runner' | 'workerId'
>

type Urgency = 'new' | 'wake'

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

/** A wake or a hand-over comes first; a new job takes its place among its owner's. */
export function deliveryOf(job: DeliveredJob, urgency: Urgency): Delivery {
  return {
    lane: job.lane,
    name: job.botLabel,
    priority: urgency === 'wake' ? PRIORITY_OF_WAKE : Math.min(job.priority, PRIORITY_MAX),
    data: {
      agentJobId: job.id,
      deliverySeq: job.deliverySeq,
      owner: job.ownerId,
      parent: job.parentJobId,
      depth: job.depth,
    },
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
