// A Redis of a test's own that can be away for a while and come back empty, at the same address.
import { mkdtemp, rm } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { environment } from '../../dev/environment.ts'
import { findRedis } from '../../dev/redis-binary.ts'
import { startRedis } from '../../dev/redis-server.ts'
import { redisCommand } from './redis-command.ts'

export interface RestartableRedis {
  url: string
  command(name: string, ...values: string[]): Promise<unknown>
  /** Ends the server. It keeps nothing on disk, as after SHUTDOWN NOSAVE without an append-only file. */
  shutDown(): Promise<void>
  /** Starts it again, empty. */
  start(): Promise<void>
  close(): Promise<void>
}

export async function startRestartableRedis(): Promise<RestartableRedis> {
  const { signal } = new AbortController()
  const { searchPath, cacheFolder } = environment
  const binary = await findRedis({ searchPath, cacheFolder, log: () => undefined, signal })
  const folder = await mkdtemp(path.join(os.tmpdir(), 'offshoot-test-redis-'))
  const options = { binary, folder, durable: false, signal }
  let server = await startRedis(options)
  const { url, port } = server
  return {
    url,
    command: (name, ...values) => redisCommand(url, name, ...values),
    shutDown: () => server.stop(),
    async start() {
      server = await startRedis({ ...options, port })
    },
    async close() {
      await server.stop()
      await rm(folder, { recursive: true, force: true })
    },
  }
}
