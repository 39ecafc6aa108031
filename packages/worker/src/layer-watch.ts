// The layer sessions of this process: which of them have to look, by a signal or by the heartbeat's pace.
import { type LayerScope, readVersions, scopeKey } from '@offshoot/shared/db/layer-states'
import type { Runtime } from '@offshoot/shared/runtime'
import type { LayerSession } from './layer-session.ts'

export interface LayerWatch {
  /** Until the returned function is called, the session hears of its parent's writes. */
  add(session: LayerSession): () => void
  close(): Promise<void>
}

export async function watchLayers(runtime: Runtime): Promise<LayerWatch> {
  const { config, logger, database, signals } = runtime
  const sessions = new Set<LayerSession>()
  let looking: Promise<void> | undefined

  const unsubscribe = await signals.subscribe('layers', (message) => {
    const written: unknown = JSON.parse(message)
    if (!Array.isArray(written)) return
    for (const session of sessions)
      if (session.parent !== undefined && written.includes(scopeKey(session.parent))) session.lookSoon()
  })

  /** A signal may be lost. One query for all. */
  async function look(): Promise<void> {
    const scopes = new Map<string, LayerScope>()
    for (const { parent, layers } of sessions)
      if (parent !== undefined && layers.some((layer) => layer.onParentUpdate !== undefined))
        scopes.set(scopeKey(parent), parent)
    if (scopes.size === 0) return
    const versions = await readVersions(database, [...scopes.values()])
    for (const session of sessions) if (session.isBehind(versions)) session.lookSoon()
  }

  const timer = setInterval(() => {
    looking ??= look()
      .catch((error: unknown) => logger.warn({ error }, 'the states of context layers could not be looked at'))
      .finally(() => {
        looking = undefined
      })
  }, config.WORKER_HEARTBEAT_MS)

  return {
    add(session) {
      sessions.add(session)
      return () => void sessions.delete(session)
    },
    async close() {
      clearInterval(timer)
      unsubscribe()
      await looking
    },
  }
}
