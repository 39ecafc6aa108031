// The process that runs PostgreSQL and Redis for another one. It stands in a session of its own, so that Ctrl-C in a
// terminal does not reach the servers, and it ends them, in good order, when it is asked to or when the other process is
// gone, however that ended: the operating system then closes the channel between the two.
import { chmod, chown, mkdtemp, rm } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import type { WatchedChild } from './child-process.ts'
import { takeDataFolder } from './data-folder.ts'
import type { KeeperReport, KeeperRequest } from './keeper-messages.ts'
import { isAlive, killProcess } from './kill-process.ts'
import { secondsSince } from './log-line.ts'
import { startPostgres } from './postgres-server.ts'
import { mayEnter, postgresUser } from './postgres-user.ts'
import { findRedis } from './redis-binary.ts'
import { startRedis } from './redis-server.ts'

type StartRequest = Extract<KeeperRequest, { kind: 'start' }>

/** What an adopted process gets between the request to end and the end. */
const ADOPTED_MS = 5_000

const stopping = new AbortController()
const adopted = new Set<number>()
const servers: WatchedChild[] = []
let temporaryFolder: string | undefined
let freeDataFolder = async () => {}
let starting: Promise<void> = Promise.resolve()

process.on('message', (request: KeeperRequest) => {
  if (request.kind === 'start') starting = start(request)
  if (request.kind === 'adopt') adopted.add(request.pid)
  if (request.kind === 'release') adopted.delete(request.pid)
  if (request.kind === 'stop') void end()
})
process.on('disconnect', () => void end())
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => void end())
process.on('uncaughtException', (error) => {
  log(`the process that keeps PostgreSQL and Redis fails: ${error.stack}`)
  void end()
})

async function start(request: StartRequest) {
  try {
    temporaryFolder = await makeTemporaryFolder()
    if (request.dataDir !== undefined) freeDataFolder = await takeDataFolder(request.dataDir)
    const postgres = request.postgres ? bringUpPostgres(request, temporaryFolder) : undefined
    const redis = request.redis ? bringUpRedis(request, temporaryFolder) : undefined
    const [databaseUrl, redisUrl] = await Promise.all([postgres, redis]).catch(async (error: unknown) => {
      stopping.abort()
      await Promise.allSettled([postgres, redis])
      throw error
    })
    report({ kind: 'started', databaseUrl, redisUrl, pids: servers.map((server) => server.pid), temporaryFolder })
  } catch (error) {
    report({ kind: 'failed', message: error instanceof Error ? error.message : String(error) })
    void end()
  }
}

async function bringUpPostgres(request: StartRequest, temporary: string) {
  const startedAt = performance.now()
  log('starting PostgreSQL …')
  const folder = request.dataDir ?? temporary
  const durable = request.dataDir !== undefined
  const server = await startPostgres({ folder, durable, temporaryFolder: temporary, signal: stopping.signal })
  keep(server)
  log(`PostgreSQL is ready on port ${server.port} (${secondsSince(startedAt)})`)
  return server.url
}

async function bringUpRedis(request: StartRequest, temporary: string) {
  const startedAt = performance.now()
  log('starting Redis …')
  const binary = await findRedis({ ...request, log, signal: stopping.signal })
  const folder = request.dataDir ?? temporary
  const durable = request.dataDir !== undefined
  const server = await startRedis({ binary, folder, durable, signal: stopping.signal })
  keep(server)
  log(`Redis is ready on port ${server.port} (${secondsSince(startedAt)})`)
  return server.url
}

function keep(server: WatchedChild) {
  servers.push(server)
  void server.endedUnasked.then((how) => log(`${server.name} has ended (${how}); it is not started again`))
}

let ended = false
async function end() {
  if (ended) return
  ended = true
  stopping.abort()
  await endAdopted()
  await starting
  await Promise.all(servers.map((server) => server.stop()))
  await freeDataFolder()
  if (temporaryFolder !== undefined) await rm(temporaryFolder, { recursive: true, force: true, maxRetries: 3 })
  process.exit(0)
}

/** Each one that ends before is released: what is left has lost its parent. */
async function endAdopted() {
  for (const pid of adopted) killProcess(pid, 'SIGTERM')
  const deadline = performance.now() + ADOPTED_MS
  while ([...adopted].some(isAlive) && performance.now() < deadline) await new Promise((done) => setTimeout(done, 50))
  for (const pid of adopted) killProcess(pid, 'SIGKILL')
}

/** Where the user who runs PostgreSQL may enter and write. */
async function makeTemporaryFolder() {
  const user = postgresUser()
  const parent = [os.tmpdir(), '/tmp', '/var/tmp'].find((folder) => mayEnter(user, folder)) ?? os.tmpdir()
  const folder = await mkdtemp(path.join(parent, 'offshoot-'))
  if (user) {
    await chown(folder, user.uid, user.gid)
    await chmod(folder, 0o700)
  }
  return folder
}

function log(line: string) {
  report({ kind: 'log', line })
}

function report(message: KeeperReport) {
  // The callback is for a channel that breaks just now: `disconnect` follows, and is what counts.
  if (process.connected) process.send?.(message, undefined, undefined, () => {})
}
