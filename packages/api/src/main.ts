// The API process: wiring, and an orderly end.
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { ConfigError, loadConfig } from '@offshoot/shared/config'
import { loadExtensions } from '@offshoot/shared/extensions'
import { newId } from '@offshoot/shared/ids'
import { createLogger, type Logger } from '@offshoot/shared/logger'
import { ANSWER_LIMIT_MS } from '@offshoot/shared/queue/redis'
import { refuseEvictingRedis } from '@offshoot/shared/queue/redis-eviction'
import { startReconciler } from '@offshoot/shared/operations/reconcile'
import { openRuntime } from '@offshoot/shared/runtime'
import { createApp } from './app.ts'
import { createOpenRequests } from './open-requests.ts'

/** Requests that run have this long to end once the process is told to stop. */
const STOP_LIMIT_MS = 10_000
/** After that, connections to Postgres and Redis have this long to close. */
const CLOSE_LIMIT_MS = 5_000

async function main(logger: Logger): Promise<void> {
  const config = loadConfig(process.env)
  logger.level = config.LOG_LEVEL
  const asked = refuseEvictingRedis(config, logger)
  asked.catch(couldNotStart)
  // One that is away is asked when it is there.
  await Promise.race([asked, delay(ANSWER_LIMIT_MS)])
  const runtime = openRuntime({ config, logger, extensions: await loadExtensions(config), name: 'api' })
  runtime.metrics.watchProcess()
  const reconciler = startReconciler(runtime, { holder: `api-${newId()}` })
  const openRequests = createOpenRequests()
  let stopping = false
  const server = createServer(createApp(runtime, { openRequests, isStopping: () => stopping }))

  const stop = async (signal: NodeJS.Signals): Promise<void> => {
    if (stopping) process.exit(1)
    stopping = true
    logger.info({ signal }, 'stopping')
    openRequests.end()
    await atMost(STOP_LIMIT_MS, Promise.all([closeServer(server), reconciler.stop()]))
    server.closeAllConnections()
    await atMost(CLOSE_LIMIT_MS, runtime.close())
    logger.info('stopped')
    process.exit(0)
  }
  process.on('SIGTERM', (signal) => void stop(signal))
  process.on('SIGINT', (signal) => void stop(signal))

  await listen(server, config.API_PORT, config.API_HOST)
  const url = urlOf(server, config.API_HOST)
  logger.info({ url }, 'listening')
  process.send?.({ ready: true, url })
}

function listen(server: Server, port: number, host: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

function urlOf(server: Server, host: string): string {
  // A server that listens on a port has an address with that port.
  const { port } = server.address() as AddressInfo
  const reachable = host === '0.0.0.0' || host === '::' ? '127.0.0.1' : host
  return `http://${reachable.includes(':') ? `[${reachable}]` : reachable}:${port}`
}

/** Takes no new connections; each one that is there is closed when its request has its answer. */
async function closeServer(server: Server): Promise<void> {
  const closeIdle = setInterval(() => server.closeIdleConnections(), 50)
  await new Promise((resolve) => server.close(resolve))
  clearInterval(closeIdle)
}

async function atMost(limitMs: number, work: Promise<unknown>): Promise<void> {
  await Promise.race([work.catch(() => undefined), new Promise((resolve) => setTimeout(resolve, limitMs).unref())])
}

function isPortTaken(error: unknown): error is Error & { port: number; address: string } {
  return error instanceof Error && 'code' in error && error.code === 'EADDRINUSE'
}

const logger = createLogger({ level: 'info', name: 'api' })
const exitWith = (what: string) => (error: unknown) => {
  // A setting that is wrong is for people to read; all else is for the log.
  if (error instanceof ConfigError) process.stderr.write(`${error.message}\n`)
  else if (isPortTaken(error))
    process.stderr.write(
      `Port ${error.port} of ${error.address} is taken. Set API_PORT to another one, or to 0 for a free one.\n`,
    )
  else logger.fatal({ error }, what)
  process.exit(1)
}
process.on('uncaughtException', exitWith('uncaught exception'))
process.on('unhandledRejection', exitWith('unhandled rejection'))
const couldNotStart = exitWith('the API could not start')
await main(logger).catch(couldNotStart)
