import { setTimeout as delay } from 'node:timers/promises'
import { ConfigError, loadConfig } from '@offshoot/shared/config'
import { loadExtensions } from '@offshoot/shared/extensions'
import { createLogger } from '@offshoot/shared/logger'
import { ANSWER_LIMIT_MS } from '@offshoot/shared/queue/redis'
import { refuseEvictingRedis } from '@offshoot/shared/queue/redis-eviction'
import { openRuntime } from '@offshoot/shared/runtime'
import { openHealthListener } from './health-listener.ts'
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
  runtime.metrics.watchProcess()
  let ready = false
  const worker = startWorker(runtime)

  // From here on, before it is ready: a container's first process never gets a signal that it has no listener for.
  let stopping = false
  const stop = (signal: NodeJS.Signals) => {
    if (stopping) process.exit(1)
    stopping = true
    logger.info({ signal }, 'draining; a second signal exits at once')
    setTimeout(() => process.exit(1), config.WORKER_DRAIN_MS + CLOSE_LIMIT_MS).unref()
    void worker
      .then((started) => started.drain())
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

  const port = config.WORKER_HEALTH_PORT
  // It answers until the process ends: a worker that drains is alive, and not ready.
  const health =
    port === undefined ? undefined : await openHealthListener(runtime, { port, isReady: () => ready && !stopping })
  await worker
  ready = true
  const at = health === undefined ? {} : { url: health.url }
  logger.info({ lanes: config.WORKER_LANES, concurrency: config.WORKER_CONCURRENCY, ...at }, 'worker ready')
  process.send?.({ ready: true, ...at })
}

function couldNotStart(error: unknown): never {
  process.stderr.write(`${describeStartError(error)}\n`)
  process.exit(1)
}

function describeStartError(error: unknown): string {
  if (error instanceof ConfigError) return error.message
  if (!(error instanceof Error)) return String(error)
  if ('code' in error && error.code === 'EADDRINUSE')
    return `The health listener's address is taken (${error.message}). Set WORKER_HEALTH_PORT to another port, to 0 for a free one, or leave it out.`
  return error.stack ?? error.message
}

main().catch(couldNotStart)
