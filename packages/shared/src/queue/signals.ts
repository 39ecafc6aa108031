// Signals: Redis messages that make something happen sooner. Losing one changes only how soon. A process holds one
// subscription connection; it subscribes to a channel while somebody listens to it.
import type { Config } from '../config.ts'
import type { Logger } from '../logger.ts'
import { closeRedis, isReachable, openRedis } from './redis.ts'
import { type RedisPulse, startRedisPulse } from './redis-pulse.ts'

/** `job:<id>` tells that a job ended, `live:<id>` that it has new frames; `workers` tells all workers that jobs have an abort wish or news, `layers` that states of context layers were written. */
export type SignalChannel = `job:${string}` | `live:${string}` | 'workers' | 'layers'

export interface Signals {
  publish(channel: SignalChannel, message: string): void
  /** Calls `listener` with each message until the returned function is called. Resolves when the subscription stands, or after 500 ms. */
  subscribe(channel: SignalChannel, listener: (message: string) => void): Promise<() => void>
  /** False while signals may not arrive: whoever waits should look more often. */
  isReachable(): boolean
  /** Whether Redis can be used at all. */
  pulse: RedisPulse
  close(): Promise<void>
}

const SUBSCRIBE_LIMIT_MS = 500
/** A subscription that Redis refuses is asked for again after this time. */
const SUBSCRIBE_AGAIN_MS = 1_000

export function openSignals(config: Config, logger: Logger): Signals {
  const publisher = openRedis(config, logger, 'signals')
  const subscriber = openRedis(config, logger, 'signals-listener')
  const listeners = new Map<string, { each: Set<(message: string) => void>; standing: Promise<unknown> }>()
  const prefix = `${config.QUEUE_PREFIX}:signal:`
  let refused = false
  let again: NodeJS.Timeout | undefined
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

  async function standUp(channels: string[]): Promise<void> {
    try {
      if (channels.length > 0) await subscriber.subscribe(...channels)
      refused = false
    } catch (error) {
      if (!refused) logger.warn({ error }, 'Redis refuses subscriptions; what signals make sooner comes later')
      refused = true
      clearTimeout(again)
      again = setTimeout(() => void standUp([...listeners.keys()]), SUBSCRIBE_AGAIN_MS)
      again.unref()
    }
  }

  // A new connection has none of the old one's subscriptions.
  subscriber.on('ready', () => void standUp([...listeners.keys()]))

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
        present = { each: new Set(), standing: standUp([name]) }
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
    isReachable: () => isReachable(publisher) && isReachable(subscriber) && !refused,
    pulse,
    async close() {
      pulse.stop()
      clearTimeout(again)
      listeners.clear()
      await Promise.all([closeRedis(publisher), closeRedis(subscriber)])
    },
  }
}
