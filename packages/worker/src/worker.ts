// A worker process: its presence, its BullMQ workers (one a lane), its reconciler, and how it drains.
import { hostname } from 'node:os'
import { Worker as BullWorker } from 'bullmq'
import { openDatabase } from '@offshoot/shared/db/database'
import { deleteWorker, holdPresenceLock, insertWorker, markDraining, type WorkerRow } from '@offshoot/shared/db/workers'
import { newId } from '@offshoot/shared/ids'
import { startReconciler } from '@offshoot/shared/operations/reconcile'
import { queueName } from '@offshoot/shared/queue/delivery-queue'
import { closeRedis, openRedis } from '@offshoot/shared/queue/redis'
import type { Runtime } from '@offshoot/shared/runtime'
import { createLiveWriters } from './live-writer.ts'
import type { DeliveryDependencies } from './process-delivery.ts'
import { createProcessor } from './processor.ts'
import { watchRunningJobs } from './running-jobs.ts'
import { createSuspects } from './suspects.ts'

export interface WorkerProcess {
  /** Stops taking deliveries, hands running jobs over at the end of their step, within WORKER_DRAIN_MS, and closes. */
  drain(): Promise<void>
}

/** What handing jobs over in the middle of a step may take: it needs Postgres only. */
const FORCED_HAND_OVER_MS = 1_000
/** BullMQ's own lock: short, since losing it means nothing here (the claim in Postgres counts). */
const DELIVERY_LOCK_MS = 30_000

export async function startWorker(runtime: Runtime): Promise<WorkerProcess> {
  const { config, logger, database } = runtime
  const lanes = config.WORKER_LANES
  let row: WorkerRow = await insertWorker(database, { id: newId(), host: hostname(), pid: process.pid, lanes })
  const presence = (worker: WorkerRow) =>
    holdPresenceLock({ databaseUrl: config.DATABASE_URL, worker, logger, onRegained: () => runningJobs.lookSoon() })
  let lock = await presence(row)
  let draining = false
  const shutdown = new AbortController()

  const heartbeatDatabase = openDatabase({
    databaseUrl: config.DATABASE_URL,
    poolSize: 1,
    applicationName: 'offshoot-heartbeat',
  })
  const runningJobs = await watchRunningJobs({
    runtime,
    heartbeatDatabase,
    workerId: () => row.id,
    async onDeclaredLost() {
      logger.warn({ workerId: row.id }, 'this worker was declared lost; it starts again under a new id')
      await lock.close()
      row = await insertWorker(database, { id: newId(), host: hostname(), pid: process.pid, lanes })
      lock = await presence(row)
      for (const worker of bullWorkers) worker.opts.name = row.id
    },
  })
  const dependencies: DeliveryDependencies = {
    runtime,
    workerId: () => row.id,
    runningJobs,
    suspects: createSuspects(),
    liveWriters: createLiveWriters(runtime),
    isDraining: () => draining,
    shutdown: shutdown.signal,
  }
  runtime.metrics.watchJobs(() => runningJobs.count())
  const reconciler = startReconciler(runtime, { holder: row.id })
  const connection = openRedis(config, logger, 'worker', { blocking: true })
  const bullWorkers = lanes.map((lane) => openLane(lane))

  function openLane(lane: string): BullWorker {
    const worker = new BullWorker(queueName(lane), createProcessor(dependencies), {
      connection,
      // Stands in each delivery that it takes, so that the reconciler sees which were taken by a lost worker.
      name: row.id,
      prefix: config.QUEUE_PREFIX,
      concurrency: config.WORKER_CONCURRENCY,
      lockDuration: DELIVERY_LOCK_MS,
      stalledInterval: DELIVERY_LOCK_MS,
      // A stalled delivery is acknowledged by whoever gets it next: BullMQ must not fail it before.
      maxStalledCount: 1_000,
    })
    // Losing a delivery means nothing while the claim in Postgres holds; whether it does is looked at now.
    worker.on('lockRenewalFailed', () => runningJobs.lookSoon())
    worker.on('error', (error) => logger.warn({ lane, error: error.message }, 'worker queue error'))
    return worker
  }

  return {
    async drain() {
      draining = true
      await markDraining(database, row.id).catch(() => undefined)
      const closed = Promise.all(bullWorkers.map((worker) => worker.close()))
      const inTime = await Promise.race([
        closed.then(() => true),
        new Promise<false>((resolve) => setTimeout(() => resolve(false), config.WORKER_DRAIN_MS).unref()),
      ])
      runtime.metrics.countDrain(inTime ? 'in_time' : 'forced')
      if (!inTime) {
        logger.warn(
          { jobs: runningJobs.count() },
          'the drain limit is over; what still runs is handed over in the middle of its step',
        )
        runningJobs.stopAll({ kind: 'drain' })
        await Promise.race([closed, new Promise((resolve) => setTimeout(resolve, FORCED_HAND_OVER_MS).unref())])
        shutdown.abort(new Error('the worker shuts down'))
      }
      await reconciler.stop()
      await runningJobs.close()
      await heartbeatDatabase.$disconnect()
      await lock.close()
      // With jobs left the row stays, so that the reconciler finds them as those of a lost worker.
      if (runningJobs.count() === 0) await deleteWorker(database, row.id).catch(() => undefined)
      await closeRedis(connection)
    },
  }
}
