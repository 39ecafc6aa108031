// Who is spawning: a host sets it around its own `streamText`, so that the tools know the caller without asking the model.
import { AsyncLocalStorage } from 'node:async_hooks'
import { z } from 'zod'

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

const hostId = z.string().max(500)

/** What a host may say of the caller: its own ids, of bounded length. Delegates are kept with each job. */
const spawnContextSchema = z.object({
  userId: hostId.min(1),
  parentConvoId: hostId,
  parentConvoOwnerId: hostId,
  parentConvoSpaceId: hostId.nullable(),
  delegateUserIds: z.array(hostId).max(1_000).optional(),
  spawnDepth: z.number().int().min(0),
  parentJobId: hostId.optional(),
})

/** @throws Error that names what is wrong with a context that a host has made */
export function assertSpawnContext(context: SpawnContext): void {
  const { error } = spawnContextSchema.safeParse(context)
  if (error !== undefined) throw new Error(`The spawn context is not usable.\n${z.prettifyError(error)}`)
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
