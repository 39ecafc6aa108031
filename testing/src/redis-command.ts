import { Redis } from 'ioredis'

/** Sends one command to a Redis, on a connection of its own. */
export async function redisCommand(redisUrl: string, name: string, ...values: string[]): Promise<unknown> {
  const redis = new Redis(redisUrl)
  try {
    return await redis.call(name, ...values)
  } finally {
    redis.disconnect()
  }
}
