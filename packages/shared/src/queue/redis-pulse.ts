// Whether Redis takes writes. One that is full answers reads as ever and refuses writes, as a replica does after a
// failover: for us it is away (docs/decisions/0015). A small write each second tells. Since an answer is owed then, it
// also shows a connection that the network has dropped without a word.
import type { Logger } from '../logger.ts'
import { isRefusal } from './queue-errors.ts'
import { isReachable, type RedisClient } from './redis.ts'

/** `refusing`: it answers, and takes no writes. */
export type RedisState = 'ok' | 'away' | 'refusing'

export interface RedisPulse {
  state(): RedisState
  /** True while Redis answers and takes writes: with anything else it is not asked. */
  isOk(): boolean
  stop(): void
}

const LOOK_EVERY_MS = 1_000
const KEY_EXPIRES_MS = 60_000

/** Writes `key` again and again on `client`. */
export function startRedisPulse(client: RedisClient, options: { key: string; logger: Logger }): RedisPulse {
  const { key, logger } = options
  let takesWrites = true
  let looking = false

  async function write(): Promise<void> {
    let refusal: string | undefined
    try {
      await client.set(key, '1', 'PX', KEY_EXPIRES_MS)
    } catch (error) {
      // Without an answer nothing is known of writes; the connection's own state says that Redis is away.
      if (!isRefusal(error)) return
      refusal = error.message
    }
    if (takesWrites === (refusal === undefined)) return
    takesWrites = refusal === undefined
    if (takesWrites) logger.info('Redis takes writes again')
    else logger.warn({ refusal }, 'Redis refuses writes; until it takes them again it counts as away')
  }

  function look(): void {
    if (looking || !isReachable(client)) return
    looking = true
    void write().finally(() => (looking = false))
  }

  const timer = setInterval(look, LOOK_EVERY_MS)
  timer.unref()
  client.on('ready', look)
  function state(): RedisState {
    if (!isReachable(client)) return 'away'
    return takesWrites ? 'ok' : 'refusing'
  }

  return {
    state,
    isOk: () => state() === 'ok',
    stop() {
      clearInterval(timer)
      client.off('ready', look)
    },
  }
}
