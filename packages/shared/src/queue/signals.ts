// Signals: Redis messages that make something happen sooner. Losing one changes only how soon. A process holds one
// subscription connection; it subscribes to a channel while somebody listens to it.
import type { Config } from '../config.ts'
import type { Logger } from '../logger.ts'
import { closeRedis, isReachable, openRedis } from './redis.ts'
import { type RedisPulse, startRedisPulse } from './redis-pulse.ts'

/** `job:<id>` tells that a job ended, `live:<id>` that it has new frames; `workers` tells all workers that jobs have an abort wish or news. */
export type SignalChannel = `job:${string}` | `live:${string}` | 'workers'

export interface Signals {
  publish(channel: SignalChannel, message: string): void
  /** Calls `listener` with each message until the returned function is called. Resolves when the subscription stands, or after 500 ms. */
  subscribe(channel: SignalChannel, listener: (message: string) => void): Promise<() => void>
  /** False while Redis is away, or refuses writes: whoever waits should look more often. */
  isReachable(): boolean
  /** Tells the two apart. */
  pulse: RedisPulse
  close(): Promise<void>
}

const SUBSCRIBE_LIMIT_MS = 500

export function openSignals(config: Config, logger: Logger): Signals {
  const publisher = openRedis(config, logger, 'signals')
  const subscriber = openRedis(config, logger, 'signals-listener')
  const listeners = new Map<string, { each: Set<(message: string) => void>; standing: Promise<unknown> }>()
  const prefix = `${config.QUEUE_PREFIX}:signal:`
  const pulse = startRedisPulse(publisher, { key: `${config.QUEUE_PREFIX}:pulse`, logger })

  subscriber.on('message', (channel: string, message: string) => {
    for (const listener of listeners.get(channel)?.each ?? []) {
      try {
        listener(message)
      } catch (error) {
        logger.error({ channel, error }, 'a signal listener failed')
      }
    }
  })

  return {
    publish(channel, message) {
      if (!isReachable(publisher)) return
      publisher.publish(prefix + channel, message).catch((error: unknown) => {
        logger.debug({ channel, error }, 'signal not sent')
      })
    },
    async subscribe(channel, listener) {
      const name = prefix + channel
      let present = listeners.get(name)
      if (present === undefined) {
        // ioredis subscribes again by itself after a reconnect.
        const standing = subscriber
          .subscribe(name)
          .catch((error: unknown) => logger.debug({ channel, error }, 'subscription failed'))
        present = { each: new Set(), standing }
        listeners.set(name, present)
      }
      const { each, standing } = present
      each.add(listener)
      await Promise.race([standing, new Promise((resolve) => setTimeout(resolve, SUBSCRIBE_LIMIT_MS).unref())])
      return () => {
        each.delete(listener)
        if (each.size > 0 || listeners.get(name)?.each !== each) return
        listeners.delete(name)
        subscriber.unsubscribe(name).catch(() => undefined)
      }
    },
    isReachable: () => pulse.state() === 'ok' && isReachable(subscriber),
    pulse,
    async close() {
      pulse.stop()
      listeners.clear()
      await Promise.all([closeRedis(publisher), closeRedis(subscriber)])
    },
  }
}
