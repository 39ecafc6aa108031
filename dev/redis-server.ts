import { mkdir } from 'node:fs/promises'
import path from 'node:path'
import type { WatchedChild } from './child-process.ts'
import { onFreePort } from './free-port.ts'
import type { RedisBinary } from './redis-binary.ts'
import { startServer } from './server-process.ts'

export type RedisOptions = {
  binary: RedisBinary
  /** Where `redis/` is, or will be made. */
  folder: string
  /** Whether every write is kept on disk (at most the last second is lost in a crash). */
  durable: boolean
  /** Where it shall listen; by default on a free port. */
  port?: number
  signal: AbortSignal
}

/** Starts Redis on 127.0.0.1, as BullMQ needs it: it refuses writes when memory is full and evicts nothing. */
export async function startRedis(options: RedisOptions): Promise<WatchedChild & { url: string; port: number }> {
  const dataFolder = path.join(options.folder, 'redis')
  await mkdir(dataFolder, { recursive: true })
  const start = async (port: number) => {
    const settings = [
      'bind 127.0.0.1',
      `port ${port}`,
      'maxmemory-policy noeviction',
      `appendonly ${options.durable ? 'yes' : 'no'}`,
      'save ""',
      'daemonize no',
    ]
    const server = await startServer({
      name: 'Redis',
      file: options.binary.file,
      args: ['-'],
      cwd: dataFolder,
      env: options.binary.env,
      input: settings.join('\n'),
      readyWhen: /Ready to accept connections/,
      stopSignal: 'SIGTERM',
      signal: options.signal,
    })
    return { ...server, port, url: `redis://127.0.0.1:${port}` }
  }
  return options.port === undefined ? onFreePort(start) : start(options.port)
}
