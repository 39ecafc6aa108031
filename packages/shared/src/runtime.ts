// What every process of Offshoot has: settings, the record, the queue, signals, live streams and the product's
// extensions. Opened once in `main.ts` (or by `createOffshoot`), handed to whoever needs it.
import { type Config, hasRedis } from './config.ts'
import { type Database, openDatabase } from './db/database.ts'
import type { Extensions } from './extensions.ts'
import type { Logger } from './logger.ts'
import { type Groups, openGroups } from './groups.ts'
import { createMetrics, type Metrics } from './metrics.ts'
import { openOutboxDispatcher, type OutboxDispatcher } from './operations/dispatch-outbox.ts'
import { type BullQueues, noDeliveryQueues, openDeliveryQueues } from './queue/delivery-queue.ts'
import { type InlineQueue, openInlineQueue } from './queue/inline-queue.ts'
import { type LiveStreams, openLiveStreams } from './queue/live-streams.ts'
import { openMemoryLiveStreams } from './queue/memory-live-streams.ts'
import { openMemorySignals } from './queue/memory-signals.ts'
import { openSignals, type Signals } from './queue/signals.ts'
import { withLimit } from './with-limit.ts'

export interface Runtime {
  config: Config
  logger: Logger
  database: Database
  deliveries: BullQueues
  /** The deliveries that this very process runs; only in a host with an inline runner. */
  inline?: InlineQueue
  signals: Signals
  liveStreams: LiveStreams
  outbox: OutboxDispatcher
  groups: Groups
  metrics: Metrics
  extensions: Extensions
  /** Lets what is on its way go out (at most half a second), then closes every connection (those to Postgres within 1 s). */
  close(): Promise<void>
}

/** Runs the deliveries of `runtime.inline` until it is closed. Made by `@offshoot/worker/inline-runner`. */
export type InlineRunnerFactory = (runtime: Runtime) => Promise<InlineRunner>

export interface InlineRunner {
  /**
   * Takes nothing more. Running jobs get WORKER_DRAIN_MS to end their step; what has not ended then ends as
   * `aborted_by_shutdown`, with its journal.
   */
  close(): Promise<void>
}

export function openRuntime(options: {
  config: Config
  logger: Logger
  extensions: Extensions
  name: string
  /** The process runs jobs of the runner `inline`. Only such a process may do without Redis. */
  runsInline?: boolean
}): Runtime {
  const { config, logger, extensions } = options
  const database = openDatabase({
    databaseUrl: config.DATABASE_URL,
    poolSize: config.DATABASE_POOL_SIZE,
    applicationName: `offshoot-${options.name}`,
  })
  const channels = hasRedis(config) ? openRedisChannels(config, logger) : openMemoryChannels(logger)
  const { deliveries, signals, liveStreams } = channels
  const inline = options.runsInline === true ? { inline: openInlineQueue(logger) } : {}
  const metrics = createMetrics()
  const outbox = openOutboxDispatcher({ config, logger, metrics, database, ...channels, ...inline, extensions })
  return {
    config,
    logger,
    database,
    ...channels,
    ...inline,
    outbox,
    groups: openGroups({ config, database, outbox, signals, metrics }),
    metrics,
    extensions,
    async close() {
      await outbox.close()
      await Promise.all([deliveries.close(), signals.close(), liveStreams.close()])
      // It waits for the statements that are under way.
      await withLimit(database.$disconnect(), DISCONNECT_LIMIT_MS).catch(() => undefined)
    },
  }
}

const DISCONNECT_LIMIT_MS = 1_000

function openRedisChannels(config: Config, logger: Logger) {
  return {
    deliveries: openDeliveryQueues(config, logger),
    signals: openSignals(config, logger),
    liveStreams: openLiveStreams(config, logger),
  }
}

function openMemoryChannels(logger: Logger) {
  return { deliveries: noDeliveryQueues(), signals: openMemorySignals(logger), liveStreams: openMemoryLiveStreams() }
}
