// The states of context layers. The rows of LayerState are the last that a transaction locks, in the order of their
// layer ids (docs/decisions/0025).
import { LayerVersionError, type StoredLayerState } from '../layers.ts'
import { newId } from '../ids.ts'
import { type Queryable, type Sql, sql } from './database.ts'
import type { Prisma } from './generated/client.ts'
import { decodeStored, encodeStoredJson, storedText } from './stored-value.ts'

/** Whose state it is: a job's, or that of a top-level convo, which all its turns share. */
export type LayerScope = { jobId: string } | { convoId: string }

/** Bytes of JSON. */
export const MAX_STATE_BYTES = 262_144
/** So many versions back a child may be and still hear of each. */
const PAST_STATES = 100

export interface LayerRow extends StoredLayerState {
  ownerId: string | null
  parentVersion: number | null
  disabled: boolean
}

/** The name of a scope, in signals. */
export function scopeKey(scope: LayerScope): string {
  return 'jobId' in scope ? `job:${scope.jobId}` : `convo:${scope.convoId}`
}

const idsOf = (scope: LayerScope) => ({
  jobId: 'jobId' in scope ? scope.jobId : null,
  convoId: 'convoId' in scope ? storedText(scope.convoId) : null,
})

function ofScope(scope: LayerScope, layerId: string): Sql {
  return 'jobId' in scope
    ? sql`"jobId" = ${scope.jobId} and "layerId" = ${layerId}`
    : sql`"convoId" = ${storedText(scope.convoId)} and "layerId" = ${layerId}`
}

/**
 * Where a job's layers find the parent's state, and where its own is. A turn is no sub-agent: its state is its convo's. A
 * job that a host has spawned has the host's convo as its parent, and one that came over HTTP none.
 */
export async function findScopes(
  db: Queryable,
  job: { id: string; mode: string; convoId: string; parentJobId: string | null; parentConvoId: string | null },
): Promise<{ own: LayerScope; parent: LayerScope | undefined }> {
  const own = ownScope(job)
  if (job.mode === 'turn') return { own, parent: undefined }
  if (job.parentJobId === null)
    return { own, parent: job.parentConvoId === null ? undefined : { convoId: job.parentConvoId } }
  const parent = await db.agentJob.findUnique({
    where: { id: job.parentJobId },
    select: { id: true, mode: true, convoId: true },
  })
  return { own, parent: parent === null ? undefined : ownScope(parent) }
}

export function ownScope(job: { id: string; mode: string; convoId: string }): LayerScope {
  return job.mode === 'turn' ? { convoId: job.convoId } : { jobId: job.id }
}

export async function readLayerRow(db: Queryable, scope: LayerScope, layerId: string): Promise<LayerRow | null> {
  const rows = await db.$queryRaw<LayerRow[]>(sql`
    select "state", "version", "ownerId", "parentVersion", "disabled" from "offshoot"."LayerState"
    where ${ofScope(scope, layerId)}`)
  const row = rows[0]
  return row === undefined ? null : { ...row, state: decodeStored(row.state) }
}

/** The state and its version; null where none was written. */
export async function readLayerState(
  db: Queryable,
  scope: LayerScope,
  layerId: string,
): Promise<StoredLayerState | null> {
  const row = await readLayerRow(db, scope, layerId)
  return row === null || row.disabled || row.version === 0 ? null : { state: row.state, version: row.version }
}

/** Of a job's layers those that its `onSpawn` hooks wanted no part in. */
export async function findDisabledLayers(db: Queryable, jobId: string): Promise<Set<string>> {
  const rows = await db.layerState.findMany({ where: { jobId, disabled: true }, select: { layerId: true } })
  return new Set(rows.map(({ layerId }) => layerId))
}

export interface LayerWrite {
  scope: LayerScope
  layerId: string
  state: unknown
  /** The version that must be there. */
  expected?: number | undefined
  /** For whom a host's convo is written. */
  ownerId?: string | undefined
  /** Names this write, so that it is made once however often its transaction is tried. */
  writeId?: string
}

/** @throws Error when a state is too large */
export function assertStateSize(layerId: string, state: unknown): void {
  const bytes = Buffer.byteLength(encodeStoredJson(state))
  if (bytes > MAX_STATE_BYTES)
    throw new Error(
      `The state of a layer may have ${MAX_STATE_BYTES} bytes of JSON; this one of "${layerId}" has ${bytes}. Keep it yourself and store an id of it.`,
    )
}

/**
 * Writes a state inside a transaction that locks nothing after it. The one that it replaces is kept for children that have
 * not seen it yet. @throws LayerVersionError when another version is there than the expected one
 */
export async function writeLayerState(db: Queryable, write: LayerWrite): Promise<number> {
  const { scope, layerId, expected } = write
  const { jobId, convoId } = idsOf(scope)
  const writeId = write.writeId ?? newId()
  const state = encodeStoredJson(write.state)
  await db.$executeRaw(sql`
    insert into "offshoot"."LayerState" ("id", "jobId", "convoId", "ownerId", "layerId", "state", "version")
    values (${newId()}, ${jobId}, ${convoId}, ${write.ownerId ?? null}, ${layerId}, 'null', 0) on conflict do nothing`)
  const [row] = await db.$queryRaw<{ id: string; version: number }[]>(sql`
    select "id", "version" from "offshoot"."LayerState" where ${ofScope(scope, layerId)} for update`)
  if (row === undefined) throw new Error(`The state of layer "${layerId}" is gone in the middle of its write.`)
  // An earlier try of this very write was committed without an answer.
  if (row.id === writeId) return row.version
  if (expected !== undefined && expected !== row.version) throw new LayerVersionError(layerId, expected, row.version)
  await db.$executeRaw(sql`
    with past as (
      insert into "offshoot"."LayerPastState" ("jobId", "convoId", "layerId", "version", "state")
      select "jobId", "convoId", "layerId", "version", "state" from "offshoot"."LayerState"
      where ${ofScope(scope, layerId)} and "version" > 0
    ), old as (
      delete from "offshoot"."LayerPastState" where ${ofScope(scope, layerId)} and "version" < ${row.version - PAST_STATES}
    )
    update "offshoot"."LayerState" set "id" = ${writeId}, "state" = ${state}::jsonb, "version" = "version" + 1
    where ${ofScope(scope, layerId)}`)
  return row.version + 1
}

/** Up to ten versions after one, oldest first. */
export async function readVersionsAfter(
  db: Queryable,
  scope: LayerScope,
  layerId: string,
  version: number,
): Promise<StoredLayerState[]> {
  const after = sql`${ofScope(scope, layerId)} and "version" > ${version}`
  const rows = await db.$queryRaw<StoredLayerState[]>(sql`
    select "version", "state" from "offshoot"."LayerPastState" where ${after}
    union all select "version", "state" from "offshoot"."LayerState" where ${after} and not "disabled"
    order by "version" limit 10`)
  return rows.map((row) => ({ version: row.version, state: decodeStored(row.state) }))
}

/** The versions of many states, by scope and layer: `job:<id>/<layerId>`. */
export async function readVersions(db: Queryable, scopes: readonly LayerScope[]): Promise<Map<string, number>> {
  const jobIds = scopes.flatMap((scope) => ('jobId' in scope ? [scope.jobId] : []))
  const convoIds = scopes.flatMap((scope) => ('convoId' in scope ? [storedText(scope.convoId)] : []))
  const rows = await db.layerState.findMany({
    where: { OR: [{ jobId: { in: jobIds } }, { convoId: { in: convoIds } }] } satisfies Prisma.LayerStateWhereInput,
    select: { jobId: true, convoId: true, layerId: true, version: true },
  })
  return new Map(
    rows.map(({ jobId, convoId, layerId, version }) => [
      `${scopeKey(jobId === null ? { convoId: convoId ?? '' } : { jobId })}/${layerId}`,
      version,
    ]),
  )
}

/** Stores that `onSpawn` has run for a child. A state that somebody wrote before stands. */
export async function insertSpawnedState(
  db: Queryable,
  jobId: string,
  layer: { layerId: string; childState: unknown; parentVersion: number; disabled: boolean },
): Promise<void> {
  const { layerId, childState, parentVersion, disabled } = layer
  const written = childState !== undefined && !disabled
  await db.$executeRaw(sql`
    insert into "offshoot"."LayerState" ("id", "jobId", "layerId", "state", "version", "parentVersion", "disabled")
    values (${newId()}, ${jobId}, ${layerId}, ${encodeStoredJson(written ? childState : null)}::jsonb,
      ${written ? 1 : 0}, ${parentVersion}, ${disabled})
    on conflict ("jobId", "layerId") do update
      set "parentVersion" = excluded."parentVersion", "disabled" = excluded."disabled",
        "state" = case when "LayerState"."version" = 0 then excluded."state" else "LayerState"."state" end,
        "version" = greatest("LayerState"."version", excluded."version")
      where "LayerState"."parentVersion" is null`)
}

/** Stores that a child has seen a version of its parent's state. */
export async function storeSeenVersion(db: Queryable, jobId: string, layerId: string, version: number): Promise<void> {
  await db.$executeRaw(sql`
    update "offshoot"."LayerState" set "parentVersion" = greatest("parentVersion", ${version})
    where "jobId" = ${jobId} and "layerId" = ${layerId}`)
}
