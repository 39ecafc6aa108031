// Layer states as tools, hosts and HTTP read and write them. Whoever has a job, or a convo, has its layers.
import type { AgentJob, Claim } from '../db/agent-jobs.ts'
import { sql } from '../db/database.ts'
import {
  assertStateSize,
  findDisabledLayers,
  type LayerScope,
  type LayerWrite,
  ownScope,
  readLayerRow,
  readLayerState,
  scopeKey,
  writeLayerState,
} from '../db/layer-states.ts'
import { storedText } from '../db/stored-value.ts'
import type { Extensions } from '../extensions.ts'
import { newId } from '../ids.ts'
import type { LayerAccess, LayerWriteOptions, StoredLayerState } from '../layers.ts'
import type { Runtime } from '../runtime.ts'
import { findReadableJob } from './check-agent.ts'
import type { JobReader } from './readable-jobs.ts'
import { transact, type TransactRuntime, type Tx } from './transact.ts'

/** Writes a state and lets workers with children of that scope know. Nothing may be locked after it. */
export async function writeLayer(tx: Tx, write: LayerWrite): Promise<number> {
  const version = await writeLayerState(tx.db, write)
  tx.nudgeLayers(scopeKey(write.scope))
  return version
}

/** The names that are no layers of this config; undefined when all are known. */
export function describeUnknownLayers({ layers }: Pick<Extensions, 'layers'>, ids: readonly string[]) {
  const unknown = ids.filter((id) => !layers.has(id))
  if (unknown.length === 0) return undefined
  return `Unknown layers: ${unknown.join(', ')}. Known: ${[...layers.keys()].join(', ') || 'none'}.`
}

export type LayerAddress = { jobId: string } | { convoId: string }

/** Where a caller's layer is; null when it is unknown or not the caller's. */
async function findScope(
  runtime: Runtime,
  reader: Extract<JobReader, { userId: string }>,
  address: LayerAddress,
  layerId: string,
): Promise<{ scope: LayerScope; ownerId?: string } | null> {
  if ('jobId' in address) {
    const job = await findReadableJob(runtime, reader, address.jobId)
    if (job === null || !job.layers.includes(layerId)) return null
    const disabled = await findDisabledLayers(runtime.database, job.id)
    return disabled.has(layerId) ? null : { scope: ownScope(job) }
  }
  if (!runtime.extensions.layers.has(layerId)) return null
  const scope = { convoId: storedText(address.convoId) }
  const convo = await runtime.database.convo.findUnique({ where: { id: scope.convoId }, select: { ownerId: true } })
  // A convo of the host's own is known here by its state only: it is whose who wrote first.
  const owner = convo?.ownerId ?? (await readLayerRow(runtime.database, scope, layerId))?.ownerId ?? reader.userId
  return owner === reader.userId || reader.admin ? { scope, ownerId: owner } : null
}

/** Null: nothing was written yet, or there is no such layer there, or it is not the caller's. */
export async function readLayer(
  runtime: Runtime,
  reader: Extract<JobReader, { userId: string }>,
  address: LayerAddress,
  layerId: string,
): Promise<StoredLayerState | null> {
  const found = await findScope(runtime, reader, address, layerId)
  return found === null ? null : readLayerState(runtime.database, found.scope, layerId)
}

/**
 * Null: there is no such layer there, or it is not the caller's.
 * @throws LayerVersionError when `version` is given and not the one that is there; Error when the state is too large
 */
export async function setLayer(
  runtime: Runtime,
  reader: Extract<JobReader, { userId: string }>,
  address: LayerAddress,
  { layerId, state, version }: { layerId: string; state: unknown } & LayerWriteOptions,
): Promise<{ version: number } | null> {
  assertStateSize(layerId, state)
  const found = await findScope(runtime, reader, address, layerId)
  if (found === null) return null
  const write = { ...found, layerId, state, expected: version, writeId: newId() }
  return { version: await transact(runtime, (tx) => writeLayer(tx, write)) }
}

/** What the tools of a running job reach. A run that has lost its job writes nothing. */
export function layersOfRun(runtime: TransactRuntime, job: AgentJob, claim: Claim): LayerAccess {
  const scope = ownScope(job)
  async function assertLayer(layerId: string): Promise<void> {
    const disabled = await findDisabledLayers(runtime.database, job.id)
    const known = job.layers.filter((id) => !disabled.has(id))
    if (!known.includes(layerId))
      throw new Error(`This job does not have the layer "${layerId}". It has: ${known.join(', ') || 'none'}.`)
  }
  return {
    async get(layerId) {
      await assertLayer(layerId)
      return readLayerState(runtime.database, scope, layerId)
    },
    async set(layerId, state, { version }) {
      await assertLayer(layerId)
      assertStateSize(layerId, state)
      const write = { scope, layerId, state, expected: version, writeId: newId() }
      return transact(runtime, async (tx) => {
        if (!(await holdsClaim(tx, claim))) throw new Error('The run has lost its job: the state was not written.')
        return { version: await writeLayer(tx, write) }
      })
    },
  }
}

/** Whether an attempt still has its job, whose row stays locked until the transaction ends. */
export async function holdsClaim(tx: Tx, claim: Claim): Promise<boolean> {
  const rows = await tx.db.$queryRaw<unknown[]>(sql`
    select 1 from "offshoot"."AgentJob"
    where "id" = ${claim.jobId} and "claimToken" = ${claim.token} and "state" = 'running' for update`)
  return rows.length === 1
}
