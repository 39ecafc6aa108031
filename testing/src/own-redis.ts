// A Redis of a test's own, which it may empty or end: the other test files share one.
import { mkdtemp, rm } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { environment } from '../../dev/environment.ts'
import { findRedis } from '../../dev/redis-binary.ts'
import { startRedis } from '../../dev/redis-server.ts'

export interface OwnRedis {
  url: string
  stop(): Promise<void>
}

export async function startOwnRedis(): Promise<OwnRedis> {
  const { signal } = new AbortController()
  const { searchPath, cacheFolder } = environment
  const binary = await findRedis({ searchPath, cacheFolder, log: () => undefined, signal })
  const folder = await mkdtemp(path.join(os.tmpdir(), 'offshoot-test-redis-'))
  const redis = await startRedis({ binary, folder, durable: false, signal })
  return {
    url: redis.url,
    async stop() {
      await redis.stop()
      await rm(folder, { recursive: true, force: true })
    },
  }
}
