// The context layers of one attempt. `onSpawn` runs before the job's first step, once: what it gives is stored together
// with the fact that it ran. `onParentUpdate` runs for each version of the parent's state after the one that the job has
// seen, while the job runs: a signal says that there is one, a step's start and the heartbeat look anyway.
import { botLabel } from '@offshoot/shared/contracts/bot'
import type { Claim, ClaimedJob } from '@offshoot/shared/db/agent-jobs'
import { isTransientDatabaseError } from '@offshoot/shared/db/database-errors'
import {
  findScopes,
  insertSpawnedState,
  type LayerScope,
  readLayerRow,
  readLayerState,
  readVersionsAfter,
  scopeKey,
  storeSeenVersion,
} from '@offshoot/shared/db/layer-states'
import { botOfJob } from '@offshoot/shared/db/bots'
import {
  type ContextLayer,
  type LayerJob,
  LayerVersionError,
  type SpawnAnswer,
  type StoredLayerState,
  type UpdateAnswer,
} from '@offshoot/shared/layers'
import { newId } from '@offshoot/shared/ids'
import { holdsClaim, writeLayer } from '@offshoot/shared/operations/layer-state'
import { transact } from '@offshoot/shared/operations/transact'
import type { Runtime } from '@offshoot/shared/runtime'
import { callHook, failureOf, type HookOutcome, inboxRows } from './layer-hooks.ts'
import { createLayerUpdates, type LayerUpdates } from './layer-updates.ts'
import { untilPostgresAnswers } from './persist.ts'
import type { StopSwitch } from './run-stop.ts'

/** How often a hook runs again because the state that it is to change was written meanwhile. */
export const MAX_RERUNS = 5

export interface LayerSession {
  /** The layers that take part, in order; known once `open` has resolved. */
  readonly layers: readonly ContextLayer[]
  readonly parent: LayerScope | undefined
  /** Runs the `onSpawn` hooks that have not run yet. @throws the run's stop */
  open(): Promise<void>
  /** Hands over what the parent wrote since; an item is in the inbox then. */
  catchUp(): Promise<void>
  /** Looks without being waited for. */
  lookSoon(): void
  /** Whether a version of this scope and layer is news to the job. */
  isBehind(versions: ReadonlyMap<string, number>): boolean
  /** From now on no update begins; resolves when the one that runs has ended. */
  pause(): Promise<void>
  resume(): void
}

interface SessionOptions {
  runtime: Runtime
  job: ClaimedJob
  claim: Claim
  stopSwitch: StopSwitch
}

/** A job's layers that this process knows; the others make the job fail (resolve-agent.ts). */
export function createLayerSession(options: SessionOptions): LayerSession {
  const { runtime, job, stopSwitch } = options
  const layers: ContextLayer[] = []
  const updates: LayerUpdates[] = []
  let parent: LayerScope | undefined
  let opened = job.layers.length === 0
  let paused = false

  async function open(): Promise<void> {
    if (opened) return
    const persist = { stopSwitch, logger: runtime.logger, jobId: job.id }
    parent = (await untilPostgresAnswers(() => findScopes(runtime.database, job), persist)).parent
    layers.length = 0
    updates.length = 0
    for (const id of job.layers) {
      const layer = runtime.extensions.layers.get(id)
      // A turn is nobody's sub-agent: its layers have state, and their hooks run for what it spawns.
      if (layer === undefined || job.mode === 'turn') continue
      const seen = await untilPostgresAnswers(() => spawnLayer(options, layer, parent), persist)
      stopSwitch.signal.throwIfAborted()
      if (seen === 'disabled') continue
      layers.push(layer)
      if (parent !== undefined && layer.onParentUpdate !== undefined)
        updates.push(createUpdates(options, layer, parent, seen))
    }
    opened = true
  }

  return {
    layers,
    get parent() {
      return parent
    },
    open,
    async catchUp() {
      if (!paused) await Promise.all(updates.map((each) => each.look()))
    },
    lookSoon() {
      if (!paused) for (const each of updates) void each.look()
    },
    isBehind: (versions) =>
      parent !== undefined &&
      updates.some(({ layerId, seen }) => (versions.get(`${scopeKey(parent as LayerScope)}/${layerId}`) ?? 0) > seen()),
    async pause() {
      paused = true
      await Promise.all(updates.map((each) => each.pause()))
    },
    resume() {
      paused = false
      for (const each of updates) each.resume()
    },
  }
}

/** Runs `onSpawn`, if it has not run. Answers the version of the parent's state that the job knows. */
async function spawnLayer(
  { runtime, job, claim, stopSwitch }: SessionOptions,
  layer: ContextLayer,
  parent: LayerScope | undefined,
): Promise<number | 'disabled'> {
  const { database } = runtime
  const known = await readLayerRow(database, { jobId: job.id }, layer.id)
  if (known !== null && known.parentVersion !== null) return known.disabled ? 'disabled' : known.parentVersion
  const parentState = parent === undefined ? null : await readLayerState(database, parent, layer.id)
  const outcome: HookOutcome<SpawnAnswer | null> =
    layer.onSpawn === undefined
      ? { answer: {} }
      : await callHook(layer, 'onSpawn', { parentState: parentState?.state ?? null, job: layerJob(job) }, stopSwitch)
  if ('stopped' in outcome) return 0
  const answer = 'answer' in outcome ? outcome.answer : null
  const parentVersion = parentState?.version ?? 0
  const disabled = answer === null
  await transact(runtime, async (tx) => {
    // The next write of this attempt learns that the claim is gone.
    if (!(await holdsClaim(tx, claim))) return
    await tx.db.inboxItem.createMany({
      data: inboxRows(job.id, layer.id, 'spawn', answer?.items),
      skipDuplicates: true,
    })
    if ('failure' in outcome) tx.record({ jobId: job.id, kind: 'layer-failed', data: { ...outcome.failure } })
    const { id: layerId } = layer
    await insertSpawnedState(tx.db, job.id, { layerId, childState: answer?.childState, parentVersion, disabled })
  })
  return disabled ? 'disabled' : parentVersion
}

function layerJob(job: ClaimedJob): LayerJob {
  return {
    jobId: job.id,
    convoId: job.convoId,
    bot: botLabel(botOfJob(job)),
    ownerId: job.ownerId,
    mode: job.mode === 'async' ? 'async' : 'sync',
    message: job.inputMessage,
    depth: job.depth,
    // Written from the spawn's tags.
    tags: job.tags as Record<string, string>,
  }
}

function createUpdates(
  options: SessionOptions,
  layer: ContextLayer,
  parent: LayerScope,
  seenAtStart: number,
): LayerUpdates {
  const { runtime, job, stopSwitch } = options
  return createLayerUpdates({
    layerId: layer.id,
    seenAtStart,
    isStopped: () => stopSwitch.signal.aborted,
    read: (version) => readVersionsAfter(runtime.database, parent, layer.id, version),
    deliver: (state) => deliver(options, layer, state),
    onError: (error) =>
      runtime.logger[isTransientDatabaseError(error) ? 'warn' : 'error'](
        { jobId: job.id, layerId: layer.id, error },
        'an update of a parent state could not be handed over; it is tried again',
      ),
  })
}

/** Hands one version to the hook and stores what it gives. False: it was not handed over, the job is not ours. */
async function deliver(
  options: SessionOptions,
  layer: ContextLayer,
  { state: parentState, version }: StoredLayerState,
): Promise<boolean> {
  const { runtime, job, stopSwitch } = options
  for (let runs = 1; ; runs += 1) {
    const child = await readLayerState(runtime.database, { jobId: job.id }, layer.id)
    const call = { parentState, childState: child?.state ?? null }
    const outcome = await callHook(layer, 'onParentUpdate', call, stopSwitch)
    if ('stopped' in outcome) return false
    try {
      return await storeUpdate(options, layer, { outcome, version, childVersion: child?.version ?? 0 })
    } catch (error) {
      if (!(error instanceof LayerVersionError)) throw error
      if (runs <= MAX_RERUNS) continue
      const failed = { failure: failureOf(layer.id, 'onParentUpdate', error) }
      return storeUpdate(options, layer, { outcome: failed, version, childVersion: 0 })
    }
  }
}

async function storeUpdate(
  { runtime, job, claim }: SessionOptions,
  layer: ContextLayer,
  update: {
    outcome: Exclude<HookOutcome<UpdateAnswer | null | undefined>, { stopped: true }>
    version: number
    childVersion: number
  },
): Promise<boolean> {
  const { outcome, version, childVersion } = update
  const answer = 'answer' in outcome ? outcome.answer : null
  const writeId = newId()
  return transact(runtime, async (tx) => {
    if (!(await holdsClaim(tx, claim))) return false
    await tx.db.inboxItem.createMany({
      data: inboxRows(job.id, layer.id, String(version), answer?.items),
      skipDuplicates: true,
    })
    if ('failure' in outcome) tx.record({ jobId: job.id, kind: 'layer-failed', data: { ...outcome.failure } })
    if (answer?.childState !== undefined) {
      const write = { layerId: layer.id, state: answer.childState, expected: childVersion, writeId }
      await writeLayer(tx, { scope: { jobId: job.id }, ...write })
    }
    await storeSeenVersion(tx.db, job.id, layer.id, version)
    return true
  })
}
