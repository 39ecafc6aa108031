// Signals within one process, for a host without Redis.
import type { Logger } from '../logger.ts'
import type { SignalChannel, Signals } from './signals.ts'

export function openMemorySignals(logger: Logger): Signals {
  const listeners = new Map<SignalChannel, Set<(message: string) => void>>()

  function tell(channel: SignalChannel, message: string): void {
    for (const listener of listeners.get(channel) ?? []) {
      try {
        listener(message)
      } catch (error) {
        logger.error({ channel, error }, 'a signal listener failed')
      }
    }
  }

  return {
    // A listener runs after the publisher has gone on, as it does with Redis.
    publish: (channel, message) => queueMicrotask(() => tell(channel, message)),
    subscribe(channel, listener) {
      const present = listeners.get(channel) ?? new Set()
      listeners.set(channel, present.add(listener))
      return Promise.resolve(() => {
        present.delete(listener)
        if (present.size === 0 && listeners.get(channel) === present) listeners.delete(channel)
      })
    },
    isReachable: () => true,
    pulse: { state: () => 'ok', isOk: () => true, stop: () => undefined },
    close() {
      listeners.clear()
      return Promise.resolve()
    },
  }
}
