import type { TestStage } from './test-stage.ts'
import { Redis } from 'ioredis'

/** Everything that Redis holds for a stage: each key, with its value as text. */
export async function redisTexts({ config }: TestStage): Promise<string[]> {
  const redis = new Redis(config.REDIS_URL ?? '')
  const bare = config.QUEUE_PREFIX.replaceAll(/[{}]/g, '')
  const texts: string[] = []
  try {
    for await (const keys of redis.scanStream({ match: `*${bare}*`, count: 500 })) {
      for (const key of keys as string[]) texts.push(`${key} ${await valueOf(redis, key)}`)
    }
  } finally {
    await redis.quit()
  }
  return texts
}

async function valueOf(redis: Redis, key: string): Promise<string> {
  switch (await redis.type(key)) {
    case 'string':
      return (await redis.get(key)) ?? ''
    case 'hash':
      return JSON.stringify(await redis.hgetall(key))
    case 'list':
      return JSON.stringify(await redis.lrange(key, 0, -1))
    case 'set':
      return JSON.stringify(await redis.smembers(key))
    case 'zset':
      return JSON.stringify(await redis.zrange(key, '0', '-1'))
    case 'stream':
      return JSON.stringify(await redis.xrange(key, '-', '+'))
    default:
      return ''
  }
}
