import { setTimeout as delay } from 'node:timers/promises'
import { ConfigError, loadConfig } from '@offshoot/shared/config'
import { loadExtensions } from '@offshoot/shared/extensions'
import { createLogger } from '@offshoot/shared/logger'
import { ANSWER_LIMIT_MS } from '@offshoot/shared/queue/redis'
import { refuseEvictingRedis } from '@offshoot/shared/queue/redis-eviction'
import { openRuntime } from '@offshoot/shared/runtime'
import { startWorker } from './worker.ts'

/** Beyond the drain limit, what closing connections may take. */
const CLOSE_LIMIT_MS = 5_000

async function main(): Promise<void> {
  const config = loadConfig(process.env)
  const logger = createLogger({ level: config.LOG_LEVEL, name: 'worker' })
  // The SDK's warnings about a model's features are the operator's, not the terminal's.
  globalThis.AI_SDK_LOG_WARNINGS = ({ warnings, model }) => logger.debug({ warnings, model }, 'model warnings')
  const asked = refuseEvictingRedis(config, logger)
  asked.catch(couldNotStart)
  // One that is away is asked when it is there.
  await Promise.race([asked, delay(ANSWER_LIMIT_MS)])
  const runtime = openRuntime({ config, logger, extensions: await loadExtensions(config), name: 'worker' })
  const worker = await startWorker(runtime)

  let stopping = false
  const stop = (signal: NodeJS.Signals) => {
    if (stopping) process.exit(1)
    stopping = true
    logger.info({ signal }, 'draining; a second signal exits at once')
    setTimeout(() => process.exit(1), config.WORKER_DRAIN_MS + CLOSE_LIMIT_MS).unref()
    void worker
      .drain()
      .then(() => runtime.close())
      .then(
        () => process.exit(0),
        (error: unknown) => {
          logger.error({ error }, 'the drain failed')
          process.exit(1)
        },
      )
  }
  process.on('SIGTERM', stop)
  process.on('SIGINT', stop)
  // A stray error leaves the process in an unknown state: the claims go to other workers, and whoever runs us starts a new one.
  const die = (error: unknown) => {
    logger.fatal({ error }, 'uncaught error; the process ends')
    process.exit(1)
  }
  process.on('uncaughtException', die)
  process.on('unhandledRejection', die)
  logger.info({ lanes: config.WORKER_LANES, concurrency: config.WORKER_CONCURRENCY }, 'worker ready')
  process.send?.({ ready: true })
}

function couldNotStart(error: unknown): never {
  process.stderr.write(
    `${error instanceof ConfigError ? error.message : error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`,
  )
  process.exit(1)
}

main().catch(couldNotStart)
