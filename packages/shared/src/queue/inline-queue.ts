// The deliveries of the runner `inline`: a queue in the memory of the process that runs them. It may be lost with the
// process, since the jobs in it are: the record says which they were.
import { deliveryId } from '../contracts/delivery.ts'
import type { Logger } from '../logger.ts'
import type { Delivery, DeliveryQueues } from './delivery-queue.ts'

/** Who takes the deliveries. */
export interface InlineWorker {
  /** The id under which this process holds jobs. */
  id(): string
  /** How many deliveries it works on at a time. */
  concurrency: number
  /** With `againAfterMs` the delivery is not over: it is to be brought again after so many milliseconds. */
  run(delivery: Delivery): Promise<{ againAfterMs?: number }>
}

export interface InlineQueue extends DeliveryQueues {
  /** From now on `worker` takes deliveries: the smallest priority first, those of one priority in their order. */
  start(worker: InlineWorker): void
  /** The worker's id; undefined before `start` and after `stop`, when nothing may be spawned here. */
  workerId(): string | undefined
  /** Takes no more deliveries. Resolves when those under way are done; what waited is dropped. */
  stop(): Promise<void>
}

interface Waiting {
  id: string
  delivery: Delivery
}

export function openInlineQueue(logger: Logger): InlineQueue {
  const waiting: Waiting[] = []
  const active = new Map<string, Promise<void>>()
  /** Those that are to be brought again, each with its lane. */
  const delayed = new Map<string, { lane: string; timer: NodeJS.Timeout }>()
  let worker: InlineWorker | undefined
  let stopped = false

  const isKnown = (id: string) => active.has(id) || delayed.has(id) || waiting.some((each) => each.id === id)

  function enqueue(next: Waiting): void {
    const later = waiting.findIndex((each) => each.delivery.priority > next.delivery.priority)
    waiting.splice(later === -1 ? waiting.length : later, 0, next)
    takeNext()
  }

  function enqueueLater(next: Waiting, afterMs: number): void {
    const timer = setTimeout(() => {
      delayed.delete(next.id)
      enqueue(next)
    }, afterMs)
    timer.unref()
    delayed.set(next.id, { lane: next.delivery.lane, timer })
  }

  function takeNext(): void {
    const taker = worker
    if (taker === undefined) return
    while (active.size < taker.concurrency) {
      const next = waiting.shift()
      if (next === undefined) return
      active.set(next.id, work(taker, next))
    }
  }

  async function work({ run }: InlineWorker, next: Waiting): Promise<void> {
    const { id, delivery } = next
    // Whoever added the delivery goes on first.
    await Promise.resolve()
    try {
      const { againAfterMs } = await run(delivery)
      if (againAfterMs !== undefined && !stopped) enqueueLater(next, againAfterMs)
    } catch (error) {
      logger.error({ delivery: id, error }, 'a delivery ended with an unexpected error')
    } finally {
      active.delete(id)
      takeNext()
    }
  }

  async function stop(): Promise<void> {
    stopped = true
    worker = undefined
    waiting.length = 0
    for (const { timer } of delayed.values()) clearTimeout(timer)
    delayed.clear()
    await Promise.all(active.values())
  }

  return {
    start(taker) {
      worker = taker
      takeNext()
    },
    workerId: () => worker?.id(),
    stop,
    add(delivery) {
      const id = deliveryId(delivery.data.agentJobId, delivery.data.deliverySeq)
      if (stopped || isKnown(id)) return Promise.resolve()
      enqueue({ id, delivery })
      return Promise.resolve()
    },
    remove(_lane, agentJobId, deliverySeq) {
      const id = deliveryId(agentJobId, deliverySeq)
      const at = waiting.findIndex((each) => each.id === id)
      if (at !== -1) waiting.splice(at, 1)
      clearTimeout(delayed.get(id)?.timer)
      delayed.delete(id)
      return Promise.resolve()
    },
    isUnderway: (_lane, agentJobId, deliverySeq) => Promise.resolve(isKnown(deliveryId(agentJobId, deliverySeq))),
    counts(lane) {
      const lanes = [
        ...waiting.map(({ delivery }) => delivery.lane),
        ...Array.from(delayed.values(), (each) => each.lane),
      ]
      return Promise.resolve({ paused: false, depth: lanes.filter((each) => each === lane).length })
    },
    isPaused: () => Promise.resolve(false),
    countBefore(_lane, agentJobId, deliverySeq) {
      const at = waiting.findIndex((each) => each.id === deliveryId(agentJobId, deliverySeq))
      return Promise.resolve(at === -1 ? undefined : at)
    },
    close: stop,
  }
}
