// What a process needs to run jobs, however they come to it: its row and lock in Postgres, one heartbeat for all its jobs,
// a reconciler, and an orderly end. The runners `queue` (worker.ts) and `inline` (inline-runner.ts) bring the deliveries.
import { hostname } from 'node:os'
import { openDatabase } from '@offshoot/shared/db/database'
import { deleteWorker, holdPresenceLock, insertWorker, markDraining, type WorkerRow } from '@offshoot/shared/db/workers'
import { newId } from '@offshoot/shared/ids'
import { startReconciler } from '@offshoot/shared/operations/reconcile'
import type { Runtime } from '@offshoot/shared/runtime'
import { withLimit } from '@offshoot/shared/with-limit'
import { watchLayers } from './layer-watch.ts'
import { createLiveWriters } from './live-writer.ts'
import type { DeliveryDependencies } from './process-delivery.ts'
import { watchRunningJobs } from './running-jobs.ts'
import { createSuspects } from './suspects.ts'

export interface JobProcess extends DeliveryDependencies {
  /**
   * Stops in order. `stopTaking` takes no more deliveries and resolves when those under way are done: at the end of their
   * step, or, after WORKER_DRAIN_MS, in the middle of it. `afterLast` runs when no job runs here any more.
   */
  drain(stopTaking: () => Promise<unknown>, afterLast?: () => Promise<void>): Promise<void>
}

/** What handing jobs over in the middle of a step may take: it needs Postgres only. */
const FORCED_HAND_OVER_MS = 1_000
/** What an orderly close may take afterwards: with a Postgres that is locked the process ends without it. */
const CLOSE_LIMIT_MS = 1_500

export interface JobProcessOptions {
  /** The lanes that it serves; none for a process that runs inline jobs only. */
  lanes: string[]
  /** Called after each heartbeat. */
  onHeartbeat?: (workerId: string) => Promise<void>
}

export async function openJobProcess(runtime: Runtime, options: JobProcessOptions): Promise<JobProcess> {
  const { config, logger, database } = runtime
  const { lanes } = options
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
    // Half of the silence after which runs are stopped: a connection that fell silent leaves time to ask on another one.
    answerLimitMs: (config.WORKER_LOCK_MS - config.WORKER_HEARTBEAT_MS) / 2,
  })
  const runningJobs = await watchRunningJobs({
    runtime,
    heartbeatDatabase,
    workerId: () => row.id,
    async onDeclaredLost() {
      logger.warn({ workerId: row.id }, 'this worker was declared lost; it starts again under a new id')
      await lock.close()
      const again = await insertWorker(heartbeatDatabase, { id: newId(), host: hostname(), pid: process.pid, lanes })
      lock = await presence(again)
      row = again
    },
    onHeartbeat: async () => options.onHeartbeat?.(row.id),
  })
  const layerWatch = await watchLayers(runtime)
  runtime.metrics.watchJobs(() => runningJobs.count())
  const reconciler = startReconciler(runtime, { holder: row.id })

  async function close(): Promise<void> {
    await reconciler.stop()
    await runningJobs.close()
    await layerWatch.close()
    await heartbeatDatabase.$disconnect()
    await lock.close()
    // With jobs left the row stays, so that the reconciler finds them as those of a lost worker.
    if (runningJobs.count() === 0) await deleteWorker(database, row.id).catch(() => undefined)
  }

  return {
    runtime,
    workerId: () => row.id,
    runningJobs,
    suspects: createSuspects(),
    layerWatch,
    liveWriters: createLiveWriters(runtime),
    isDraining: () => draining,
    shutdown: shutdown.signal,
    async drain(stopTaking, afterLast) {
      draining = true
      // Nobody waits for it: no more deliveries are taken from here on, whatever Postgres says.
      void markDraining(database, row.id).catch(() => undefined)
      const stopped = stopTaking()
      const inTime = await Promise.race([
        stopped.then(() => true),
        new Promise<false>((resolve) => setTimeout(() => resolve(false), config.WORKER_DRAIN_MS).unref()),
      ])
      runtime.metrics.countDrain(inTime ? 'in_time' : 'forced')
      if (!inTime) {
        logger.warn(
          { jobs: runningJobs.count() },
          'the drain limit is over; what still runs is stopped in the middle of its step',
        )
        runningJobs.stopAll({ kind: 'drain' })
        await Promise.race([stopped, new Promise((resolve) => setTimeout(resolve, FORCED_HAND_OVER_MS).unref())])
        shutdown.abort(new Error('the worker shuts down'))
      }
      await afterLast?.()
      await withLimit(close(), CLOSE_LIMIT_MS).catch((error: unknown) =>
        logger.warn({ error }, 'Postgres did not let everything close'),
      )
    },
  }
}
