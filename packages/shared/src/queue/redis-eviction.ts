// A Redis that evicts keys when its memory is full would drop deliveries, locks and live streams without a word: it is
// refused at start (docs/decisions/0015).
import { Cluster } from 'ioredis'
import { type Config, ConfigError } from '../config.ts'
import type { Logger } from '../logger.ts'
import { closeRedis, openRedis, type RedisClient } from './redis.ts'

/**
 * Asks Redis, or each master of a cluster, how it deals with full memory. Resolves when it keeps its keys, or does not
 * say (that is logged); stays pending while Redis is away. `INFO` is asked, and not `CONFIG GET`, which managed Redis
 * forbids.
 * @throws ConfigError when Redis would evict keys
 */
export async function refuseEvictingRedis(config: Config, logger: Logger): Promise<void> {
  const client = openRedis(config, logger, 'start')
  try {
    for (const node of await nodesOf(client)) {
      const memory = readMemoryInfo(await node.info('memory'))
      if (memory.policy === undefined || memory.maxBytes === undefined)
        logger.warn('Redis does not say whether it evicts keys (INFO memory); it must not: maxmemory-policy noeviction')
      else if (memory.maxBytes > 0 && memory.policy !== 'noeviction')
        throw new ConfigError(evictionMessage(node, memory.maxBytes, memory.policy))
    }
  } catch (error) {
    if (error instanceof ConfigError) throw error
    logger.warn({ error }, 'Redis was not asked whether it evicts keys; it must not: maxmemory-policy noeviction')
  } finally {
    await closeRedis(client)
  }
}

async function nodesOf(client: RedisClient): Promise<Exclude<RedisClient, Cluster>[]> {
  if (!(client instanceof Cluster)) return [client]
  if (client.status !== 'ready') await new Promise<void>((resolve) => void client.once('ready', () => resolve()))
  return client.nodes('master')
}

/** What the section `memory` of INFO says of a full memory: its limit (0 is none) and what happens to keys then. */
export function readMemoryInfo(info: string): { maxBytes: number | undefined; policy: string | undefined } {
  const maxBytes = /^maxmemory:(\d+)/m.exec(info)?.[1]
  return {
    maxBytes: maxBytes === undefined ? undefined : Number(maxBytes),
    policy: /^maxmemory_policy:(\S+)/m.exec(info)?.[1],
  }
}

function evictionMessage({ options }: Exclude<RedisClient, Cluster>, maxBytes: number, policy: string): string {
  return [
    `Redis at ${options.host ?? ''}:${options.port ?? ''} evicts keys when its memory is full: maxmemory is ${maxBytes} bytes, maxmemory-policy is ${policy}.`,
    'Deliveries and live streams would be dropped without a word. Allowed are maxmemory-policy noeviction, or no maxmemory.',
    'Run "CONFIG SET maxmemory-policy noeviction", and set it in redis.conf, or in the settings of a managed Redis.',
  ].join('\n')
}
