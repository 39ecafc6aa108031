// Deliveries: BullMQ jobs that carry an agent job to a worker once. They have one attempt and no memory of their own;
// whether a delivery counts is decided by the claim in Postgres.
import { Queue } from 'bullmq'
import type { Config } from '../config.ts'
import { deliveryId, type DeliveryData } from '../contracts/delivery.ts'
import type { Logger } from '../logger.ts'
import { withLimit } from '../with-limit.ts'
import { ANSWER_LIMIT_MS, closeRedis, openRedis, type RedisClient } from './redis.ts'

export interface Delivery {
  lane: string
  /** Shown as the delivery's name: the bot. */
  name: string
  data: DeliveryData
  /** 1 is first; see contracts/delivery.ts. */
  priority: number
}

export interface DeliveryCounts {
  paused: boolean
  /** Deliveries that no worker has taken. */
  depth: number
}

/** How many completed deliveries Bull Board can look back on. An age would cost commands with each delivery. */
const KEEP_COMPLETED = { count: 1_000 }
/** And failed ones, and for how long (seconds). */
const KEEP_FAILED = { count: 5_000, age: 7 * 24 * 3_600 }

export function queueName(lane: string): string {
  return `agents-${lane}`
}

export interface DeliveryQueues {
  /** Adds a delivery. It stays pending while Redis is away: give it a limit. */
  add(delivery: Delivery): Promise<void>
  /** Removes a delivery that no worker has taken; one that is active stays. */
  remove(lane: string, agentJobId: string, deliverySeq: number): Promise<void>
  /**
   * True when the delivery is waiting or was taken by a worker, one of `workers` if they are given; absent and finished
   * ones are not. @throws Error when Redis does not answer within 1 s
   */
  isUnderway(lane: string, agentJobId: string, deliverySeq: number, workers?: ReadonlySet<string>): Promise<boolean>
  counts(lane: string): Promise<DeliveryCounts>
  isPaused(lane: string): Promise<boolean>
  /**
   * How many deliveries of the lane are taken before this one; undefined when it does not wait in the queue. It is the
   * rank in the set from which workers take, so it is true whatever the priorities, and one look.
   */
  countBefore(lane: string, agentJobId: string, deliverySeq: number): Promise<number | undefined>
  close(): Promise<void>
}

export interface BullQueues extends DeliveryQueues {
  /** The BullMQ queue of a lane, opened on first use. */
  lane(lane: string): Queue
}

export function openDeliveryQueues(config: Config, logger: Logger): BullQueues {
  const connection: RedisClient = openRedis(config, logger, 'deliveries')
  const queues = new Map<string, Queue>()

  function lane(name: string): Queue {
    const known = queues.get(name)
    if (known !== undefined) return known
    const queue = new Queue(queueName(name), {
      connection,
      prefix: config.QUEUE_PREFIX,
      defaultJobOptions: {
        attempts: 1,
        removeOnComplete: KEEP_COMPLETED,
        removeOnFail: KEEP_FAILED,
        stackTraceLimit: 1,
      },
    })
    queue.on('error', (error) => logger.warn({ lane: name, error: error.message }, 'queue error'))
    queues.set(name, queue)
    return queue
  }

  return {
    lane,
    async add({ lane: laneName, name, data, priority }) {
      const jobId = deliveryId(data.agentJobId, data.deliverySeq)
      await lane(laneName).add(name, data, { jobId, priority })
    },
    async remove(laneName, agentJobId, deliverySeq) {
      // BullMQ answers 0 for a delivery that is active (locked) or gone: both are fine here.
      await lane(laneName).remove(deliveryId(agentJobId, deliverySeq))
    },
    async isUnderway(laneName, agentJobId, deliverySeq, workers) {
      const id = deliveryId(agentJobId, deliverySeq)
      const state = await withLimit(lane(laneName).getJobState(id), ANSWER_LIMIT_MS)
      if (state !== 'active' || workers === undefined)
        return state !== 'unknown' && state !== 'completed' && state !== 'failed'
      const delivery = await withLimit(lane(laneName).getJob(id), ANSWER_LIMIT_MS)
      return delivery?.processedBy === undefined || workers.has(delivery.processedBy)
    },
    async counts(laneName) {
      const queue = lane(laneName)
      const [paused, counts] = await Promise.all([
        queue.isPaused(),
        queue.getJobCounts('waiting', 'prioritized', 'delayed'),
      ])
      return { paused, depth: Object.values(counts).reduce((sum, count) => sum + count, 0) }
    },
    isPaused: (laneName) => lane(laneName).isPaused(),
    async countBefore(laneName, agentJobId, deliverySeq) {
      const waiting = lane(laneName).toKey('prioritized')
      return (await connection.zrank(waiting, deliveryId(agentJobId, deliverySeq))) ?? undefined
    },
    async close() {
      // BullMQ waits for a start that never comes while Redis is away.
      const closed = Promise.all([...queues.values()].map((queue) => queue.close()))
      await withLimit(closed, ANSWER_LIMIT_MS).catch(() => undefined)
      await closeRedis(connection)
    },
  }
}

/** Those of a process without Redis: what belongs there is left to the processes that have it. */
export function noDeliveryQueues(): BullQueues {
  const reject = async () => refuse()
  return {
    lane: refuse,
    add: reject,
    remove: reject,
    isUnderway: reject,
    counts: reject,
    isPaused: reject,
    countBefore: reject,
    close: async () => undefined,
  }
}

function refuse(): never {
  throw new Error('This process has no Redis (REDIS_URL): the delivery is left to one that has.')
}
