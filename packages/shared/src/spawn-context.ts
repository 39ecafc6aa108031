// Who is spawning: a host sets it around its own `streamText`, so that the tools know the caller without asking the model.
import { AsyncLocalStorage } from 'node:async_hooks'

export interface SpawnContext {
  /** The user on whose behalf the host runs. */
  userId: string
  parentConvoId: string
  parentConvoOwnerId: string
  parentConvoSpaceId: string | null
  /** Users that `userId` may spawn as, besides those in the table. */
  delegateUserIds?: string[]
  /** 0 in a top-level chat turn; a sub-agent gets this plus one. */
  spawnDepth: number
  parentJobId?: string
}

const storage = new AsyncLocalStorage<SpawnContext>()

/** Runs `work` with `context` as the caller of every sub-agent tool in it, also in streams that are read elsewhere. */
export function runWithSpawnContext<T>(context: SpawnContext, work: () => T): T {
  return storage.run(context, work)
}

/** @throws Error outside `runWithSpawnContext`, saying what to do */
export function getSpawnContext(): SpawnContext {
  const context = storage.getStore()
  if (context === undefined) {
    throw new Error(
      'There is no spawn context. Wrap the call that uses the sub-agent tools: runWithSpawnContext({ userId, parentConvoId, parentConvoOwnerId, parentConvoSpaceId, spawnDepth: 0 }, () => streamText({ tools: offshoot.tools(), … })).',
    )
  }
  return context
}
