// The runner `queue`: a process that takes deliveries from BullMQ, one BullMQ worker a lane.
import { Worker as BullWorker } from 'bullmq'
import { queueName } from '@offshoot/shared/queue/delivery-queue'
import { closeRedis, openRedis } from '@offshoot/shared/queue/redis'
import type { Runtime } from '@offshoot/shared/runtime'
import { openJobProcess } from './job-process.ts'
import { createProcessor } from './processor.ts'

export interface WorkerProcess {
  /** Stops taking deliveries, hands running jobs over at the end of their step, within WORKER_DRAIN_MS, and closes. */
  drain(): Promise<void>
}

/** BullMQ's own lock: short, since losing it means nothing here (the claim in Postgres counts). */
const DELIVERY_LOCK_MS = 30_000

export async function startWorker(runtime: Runtime): Promise<WorkerProcess> {
  const { config, logger } = runtime
  const lanes = config.WORKER_LANES
  const jobProcess = await openJobProcess(runtime, { lanes })
  const connection = openRedis(config, logger, 'worker', { forWorker: true })
  const bullWorkers = lanes.map((lane) => openLane(lane))

  function openLane(lane: string): BullWorker {
    const worker = new BullWorker(queueName(lane), createProcessor(jobProcess), {
      connection,
      prefix: config.QUEUE_PREFIX,
      concurrency: config.WORKER_CONCURRENCY,
      lockDuration: DELIVERY_LOCK_MS,
      stalledInterval: DELIVERY_LOCK_MS,
      // A stalled delivery is acknowledged by whoever gets it next: BullMQ must not fail it before.
      maxStalledCount: 1_000,
    })
    // Stands in each delivery that it takes, so that the reconciler sees which were taken by a lost worker. BullMQ reads it
    // each time; a worker that was declared lost goes on under another one.
    Object.defineProperty(worker.opts, 'name', { get: () => jobProcess.workerId(), enumerable: true })
    // Losing a delivery means nothing while the claim in Postgres holds; whether it does is looked at now.
    worker.on('lockRenewalFailed', () => jobProcess.runningJobs.lookSoon())
    worker.on('error', (error) => logger.warn({ lane, error: error.message }, 'worker queue error'))
    return worker
  }

  return {
    async drain() {
      await jobProcess.drain(() => Promise.all(bullWorkers.map((worker) => worker.close())))
      await closeRedis(connection)
    },
  }
}
