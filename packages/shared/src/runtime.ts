// What every process of Offshoot has: settings, the record, the queue, signals, live streams and the product's
// extensions. Opened once in `main.ts` (or by `createOffshoot`), handed to whoever needs it.
import type { Config } from './config.ts'
import { type Database, openDatabase } from './db/database.ts'
import type { Extensions } from './extensions.ts'
import type { Logger } from './logger.ts'
import { createMetrics, type Metrics } from './metrics.ts'
import { openOutboxDispatcher, type OutboxDispatcher } from './operations/dispatch-outbox.ts'
import { type DeliveryQueues, openDeliveryQueues } from './queue/delivery-queue.ts'
import { type LiveStreams, openLiveStreams } from './queue/live-streams.ts'
import { openSignals, type Signals } from './queue/signals.ts'

export interface Runtime {
  config: Config
  logger: Logger
  database: Database
  deliveries: DeliveryQueues
  signals: Signals
  liveStreams: LiveStreams
  outbox: OutboxDispatcher
  metrics: Metrics
  extensions: Extensions
  /** Lets what is on its way go out (at most half a second), then closes every connection. */
  close(): Promise<void>
}

export function openRuntime(options: {
  config: Config
  logger: Logger
  extensions: Extensions
  name: string
}): Runtime {
  const { config, logger, extensions } = options
  const database = openDatabase({
    databaseUrl: config.DATABASE_URL,
    poolSize: config.DATABASE_POOL_SIZE,
    applicationName: `offshoot-${options.name}`,
  })
  const deliveries = openDeliveryQueues(config, logger)
  const signals = openSignals(config, logger)
  const liveStreams = openLiveStreams(config, logger)
  const metrics = createMetrics()
  const outbox = openOutboxDispatcher({
    config,
    logger,
    metrics,
    database,
    deliveries,
    signals,
    liveStreams,
    extensions,
  })
  return {
    config,
    logger,
    database,
    deliveries,
    signals,
    liveStreams,
    outbox,
    metrics,
    extensions,
    async close() {
      await outbox.close()
      await Promise.all([deliveries.close(), signals.close(), liveStreams.close()])
      await database.$disconnect()
    },
  }
}
