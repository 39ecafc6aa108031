import { fork, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { rm } from 'node:fs/promises'
import { connect } from 'node:net'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { environment } from './environment.ts'
import type { KeeperReport, KeeperRequest } from './keeper-messages.ts'
import { killProcess } from './kill-process.ts'
import type { Log } from './log-line.ts'

export type ServicesOptions = {
  /** Keeps the data there for the next time; without, it is thrown away at the end. */
  dataDir?: string | undefined
  log: Log
  /** Gives up starting. */
  signal?: AbortSignal
}

export type Services = {
  databaseUrl: string
  redisUrl: string
  /** Ends that process, too, should this one die without a chance to do it. */
  adopt(child: ChildProcess): void
  /** Ends what was started here, in good order. */
  stop(): Promise<void>
}

const START_MS = 300_000 // a download may be part of it
const STOP_MS = 15_000

/**
 * PostgreSQL and Redis on this machine: those of DATABASE_URL and REDIS_URL where these are set, else servers started for
 * this run, on free ports of 127.0.0.1. They end with `stop`, and also when this process dies in any other way.
 * @throws Error that says what failed, or what a person can do to have the missing service; nothing is left running then.
 */
export async function startServices({ dataDir, log, signal }: ServicesOptions): Promise<Services> {
  signal?.throwIfAborted()
  const { databaseUrl, redisUrl, cacheFolder, searchPath } = environment
  if (databaseUrl !== undefined) log('using the PostgreSQL of DATABASE_URL')
  if (redisUrl !== undefined) {
    log('using the Redis of REDIS_URL')
    await checkReachable(redisUrl)
  }
  const keeper = startKeeper(log)
  const request = { postgres: databaseUrl === undefined, redis: redisUrl === undefined, cacheFolder, searchPath }
  keeper.send({ kind: 'start', ...request, dataDir: dataDir === undefined ? undefined : path.resolve(dataDir) })
  try {
    const started = await keeper.started(signal)
    const urls = { databaseUrl: databaseUrl ?? started.databaseUrl, redisUrl: redisUrl ?? started.redisUrl }
    if (urls.databaseUrl === undefined || urls.redisUrl === undefined) throw new Error('A service has no URL.')
    return {
      databaseUrl: urls.databaseUrl,
      redisUrl: urls.redisUrl,
      adopt: keeper.adopt,
      stop: () => keeper.stop(started),
    }
  } catch (error) {
    await keeper.stop()
    throw error
  }
}

function startKeeper(log: Log) {
  const child = fork(fileURLToPath(new URL('services-keeper.ts', import.meta.url)), {
    detached: true,
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  })
  const ended = once(child, 'exit')
  let stopAsked = false
  const { promise, resolve, reject } = Promise.withResolvers<Extract<KeeperReport, { kind: 'started' }>>()
  promise.catch(() => {}) // whoever waits for it hears of it

  child.on('message', (report: KeeperReport) => {
    if (report.kind === 'log') log(report.line)
    if (report.kind === 'started') resolve(report)
    if (report.kind === 'failed') reject(new Error(report.message))
  })
  child.on('error', reject)
  child.once('exit', () => {
    reject(new Error('The process that keeps the services has ended.'))
    if (!stopAsked) log('the process that keeps PostgreSQL and Redis has ended')
  })
  const send = (request: KeeperRequest) => void (child.connected && child.send(request))

  return {
    send,
    adopt(adopted: ChildProcess) {
      const { pid } = adopted
      if (pid === undefined) return
      send({ kind: 'adopt', pid })
      adopted.once('exit', () => send({ kind: 'release', pid }))
    },
    started(signal: AbortSignal | undefined) {
      const late = AbortSignal.timeout(START_MS)
      const giveUp = AbortSignal.any(signal ? [signal, late] : [late])
      giveUp.addEventListener('abort', () =>
        reject(new Error(late.aborted ? `The services are not up after ${START_MS / 1000} s.` : 'Stopped.')),
      )
      return promise
    },
    /** @param left what to end and to remove should the keeper be unable to */
    async stop(left?: { pids: readonly number[]; temporaryFolder: string }) {
      const alreadyEnded = child.exitCode !== null || child.signalCode !== null
      stopAsked = true
      send({ kind: 'stop' })
      const force = setTimeout(() => child.kill('SIGKILL'), STOP_MS)
      await (alreadyEnded || ended)
      clearTimeout(force)
      if (child.exitCode === 0 || left === undefined) return
      for (const pid of left.pids) killProcess(pid, 'SIGQUIT') // PostgreSQL then ends its sessions' processes, too
      await rm(left.temporaryFolder, { recursive: true, force: true, maxRetries: 10 })
    },
  }
}

async function checkReachable(redisUrl: string) {
  if (!URL.canParse(redisUrl)) throw new Error(`REDIS_URL is no URL: "${redisUrl}"; one is redis://127.0.0.1:6379.`)
  const url = new URL(redisUrl)
  const host = url.hostname.replace(/^\[|\]$/g, '')
  const socket = connect({ host, port: Number(url.port || 6379), timeout: 5_000 })
  try {
    await Promise.race([
      once(socket, 'connect'),
      once(socket, 'timeout').then(() => Promise.reject(new Error('no answer'))),
    ])
  } catch (cause) {
    const reason = cause instanceof Error && cause.message ? cause.message : String(cause)
    throw new Error(`REDIS_URL is set, but nothing answers at ${url.host}: ${reason}`, { cause })
  } finally {
    socket.destroy()
  }
}
