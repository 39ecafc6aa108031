import { Cluster, Redis } from 'ioredis'
import type { Config } from '../config.ts'
import type { Logger } from '../logger.ts'

export type RedisClient = Redis | Cluster

/** The longest pause between two attempts to reach Redis again, so that work goes on soon after it is back. */
const MAX_RECONNECT_DELAY_MS = 2_000
/** A connection that owes an answer for this long is dead, whatever TCP thinks: a new one is made. */
const SILENCE_LIMIT_MS = 5_000
/** How long a question to Redis may take before the asker goes on without an answer. Redis away never answers. */
export const ANSWER_LIMIT_MS = 1_000

/**
 * Opens one connection (or one cluster client). It reconnects for ever, never throws on its own, and logs each change
 * between reachable and away once. A BullMQ worker blocks on a duplicate of the one that it gets (`forWorker`), so that
 * silence there means nothing; BullMQ watches over that one itself.
 */
export function openRedis(
  config: Config,
  logger: Logger,
  purpose: string,
  { forWorker = false }: { forWorker?: boolean } = {},
): RedisClient {
  const options: ConnectionOptions = {
    maxRetriesPerRequest: null,
    enableReadyCheck: true,
    // Nobody would hear it when Redis refuses that, and the rejection would end the process: signals.ts does it.
    autoResubscribe: false,
    connectionName: `offshoot:${purpose}`,
    retryStrategy: (attempts: number) => Math.min(50 * 2 ** Math.min(attempts, 10), MAX_RECONNECT_DELAY_MS),
    socketTimeout: SILENCE_LIMIT_MS,
    // What is sent in the same moment goes in one message; but nothing may stand behind a command that blocks.
    ...(forWorker ? {} : { enableAutoPipelining: true }),
  }
  const client = connect(config, options)
  if (forWorker) letDuplicatesBlock(client)
  let away = false
  client.on('error', (error: Error) => {
    if (!away) logger.warn({ purpose, error: error.message }, 'Redis is away; trying again')
    away = true
  })
  client.on('ready', () => {
    if (away) logger.info({ purpose }, 'Redis is back')
    away = false
  })
  return client
}

interface ConnectionOptions {
  maxRetriesPerRequest: null
  enableReadyCheck: boolean
  autoResubscribe: boolean
  connectionName: string
  retryStrategy: (attempts: number) => number
  socketTimeout: number
  enableAutoPipelining?: boolean
}

function connect(config: Config, options: ConnectionOptions): RedisClient {
  if (config.REDIS_CLUSTER_NODES !== undefined) {
    const { retryStrategy, ...redisOptions } = options
    return new Cluster(config.REDIS_CLUSTER_NODES.map(splitHostPort), {
      redisOptions,
      clusterRetryStrategy: retryStrategy,
    })
  }
  if (config.REDIS_SENTINELS !== undefined) {
    return new Redis({
      ...options,
      sentinels: config.REDIS_SENTINELS.map(splitHostPort),
      name: config.REDIS_SENTINEL_NAME ?? '',
    })
  }
  return new Redis(config.REDIS_URL ?? '', options)
}

/** A duplicate of the connection owes no answer in time. */
function letDuplicatesBlock(client: RedisClient): void {
  // ioredis takes an option that is there and undefined for one that is not set, which its types do not say.
  const noLimit = { socketTimeout: undefined } as object
  if (client instanceof Cluster) {
    const duplicate = client.duplicate.bind(client)
    client.duplicate = (nodes, options) =>
      duplicate(nodes, { ...options, redisOptions: { ...options?.redisOptions, ...noLimit } })
  } else {
    const duplicate = client.duplicate.bind(client)
    client.duplicate = (options) => duplicate({ ...options, ...noLimit })
  }
}

function splitHostPort(node: string): { host: string; port: number } {
  const colon = node.lastIndexOf(':')
  return { host: node.slice(0, colon), port: Number(node.slice(colon + 1)) }
}

/** Closes a connection whether or not Redis answers: asks politely for `timeoutMs`, then cuts. */
export async function closeRedis(client: RedisClient, timeoutMs = 1_000): Promise<void> {
  const cut = new Promise<void>((resolve) => setTimeout(resolve, timeoutMs).unref())
  await Promise.race([
    client
      .quit()
      .then(() => undefined)
      .catch(() => undefined),
    cut,
  ])
  client.disconnect()
}

/** True while commands reach the server. */
export function isReachable(client: RedisClient): boolean {
  return client.status === 'ready'
}
