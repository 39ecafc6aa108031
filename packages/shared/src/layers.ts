// Context layers: what a product hands from a parent to its sub-agents and back. A layer is defined once, in the config
// module, and named by its id; its state is JSON in Postgres, one for each job (or top-level convo) that has the layer.
import { AsyncLocalStorage } from 'node:async_hooks'
import { z } from 'zod'

/** A message that a hook puts before the sub-agent, as a user message marked with the layer's id. */
export interface LayerItem {
  /** Longer ones than 50,000 characters are shown by their head and tail. */
  text: string
}

/** The sub-agent that a hook is called for. */
export interface LayerJob {
  jobId: string
  convoId: string
  /** `group/handle` */
  bot: string
  ownerId: string
  mode: 'sync' | 'async'
  message: string
  depth: number
  tags: Record<string, string>
}

interface HookCall {
  /** Aborted when the hook's time is up, or the run that calls it is stopped. */
  signal: AbortSignal
}

/**
 * A layer. States are null where nothing was written yet. A hook that throws, takes too long or answers in another shape is
 * recorded in the job's history (`layer-failed`), and the job goes on as if the layer had nothing to say.
 */
export interface ContextLayer {
  id: string
  /** Runs once, before the sub-agent's first step. `null`: the layer has no part in this sub-agent. */
  onSpawn?: (
    call: { parentState: unknown; job: LayerJob } & HookCall,
  ) => Promise<SpawnAnswer | null> | SpawnAnswer | null
  /**
   * Runs when the sub-agent completes, in the order of its layers, each on the result of the one before. It may run again
   * when the parent's state was written meanwhile.
   */
  onReturn?: (
    call: { parentState: unknown; childState: unknown; result: string } & HookCall,
  ) => Promise<ReturnAnswer | null | undefined | void> | ReturnAnswer | null | undefined | void
  /** Runs for each write of the parent's state while the sub-agent runs, one after the other, in the order of the writes. */
  onParentUpdate?: (
    call: { parentState: unknown; childState: unknown } & HookCall,
  ) => Promise<UpdateAnswer | null | undefined | void> | UpdateAnswer | null | undefined | void
  /** By default 10 s, 10 s and 5 s. */
  timeoutsMs?: { onSpawn?: number; onReturn?: number; onParentUpdate?: number }
}

export interface SpawnAnswer {
  childState?: unknown
  items?: LayerItem[]
}
export interface ReturnAnswer {
  parentState?: unknown
  result?: string
}
export interface UpdateAnswer {
  childState?: unknown
  items?: LayerItem[]
}

export const HOOK_TIMEOUTS_MS = { onSpawn: 10_000, onReturn: 10_000, onParentUpdate: 5_000 } as const
export type LayerHook = keyof typeof HOOK_TIMEOUTS_MS

const MAX_ITEMS = 20
const itemsSchema = z.array(z.strictObject({ text: z.string().min(1) })).max(MAX_ITEMS)

/** What hooks may answer: in another shape it counts as a failure, so that nothing is dropped without a word. */
export const HOOK_ANSWERS = {
  onSpawn: z.strictObject({ childState: z.unknown().optional(), items: itemsSchema.optional() }).nullable(),
  onReturn: z.strictObject({ parentState: z.unknown().optional(), result: z.string().optional() }).nullish(),
  onParentUpdate: z.strictObject({ childState: z.unknown().optional(), items: itemsSchema.optional() }).nullish(),
} satisfies Record<LayerHook, z.ZodType>

export const layerIdSchema = z
  .string()
  .min(1)
  .max(200)
  .regex(/^[\w.-]+$/, 'use letters, digits, ".", "-" and "_"')

const hook = z.custom((value) => typeof value === 'function', 'must be a function').optional()
const timeoutMs = z.number().int().min(1).max(300_000).optional()
export const contextLayerSchema = z.strictObject({
  id: layerIdSchema,
  onSpawn: hook,
  onReturn: hook,
  onParentUpdate: hook,
  timeoutsMs: z.strictObject({ onSpawn: timeoutMs, onReturn: timeoutMs, onParentUpdate: timeoutMs }).optional(),
})

/** @throws Error that names what is wrong with the definition */
export function defineLayer(layer: ContextLayer): ContextLayer {
  const { error } = contextLayerSchema.safeParse(layer)
  if (error !== undefined) throw new Error(`The layer is not usable.\n${z.prettifyError(error)}`)
  return layer
}

export interface StoredLayerState {
  state: unknown
  /** Counts the writes; the first one makes it 1. */
  version: number
}

/** A write that named a version found another one: nothing was written. */
export class LayerVersionError extends Error {
  override name = 'LayerVersionError'
  readonly layerId: string
  /** The version that is there; 0: none yet. */
  readonly version: number

  constructor(layerId: string, expected: number, version: number) {
    super(
      `The state of layer "${layerId}" has version ${version}, not ${expected}: somebody else wrote it. Read it again and decide anew.`,
    )
    this.layerId = layerId
    this.version = version
  }
}

export interface LayerWriteOptions {
  /** Only when the state has this version; 0: only when there is none yet. */
  version?: number
}

/** The layers of the job that runs now. */
export interface LayerAccess {
  get(layerId: string): Promise<StoredLayerState | null>
  set(layerId: string, state: unknown, options: LayerWriteOptions): Promise<{ version: number }>
}

const storage = new AsyncLocalStorage<LayerAccess>()

/** Runs `work` with the layers of a job in reach of its tools. */
export function runWithLayers<T>(access: LayerAccess, work: () => T): T {
  return storage.run(access, work)
}

/**
 * Inside a tool: what a layer of the running job holds, or null where nothing was written yet.
 * @throws Error outside a worker's tool calls, and for a layer that the job does not have
 */
export async function getLayerState(layerId: string): Promise<StoredLayerState | null> {
  return accessOfRun().get(layerId)
}

/**
 * Inside a tool: writes it, and answers its new version. Sub-agents with this layer hear of it.
 * @throws LayerVersionError when `version` is given and not the one that is there
 */
export async function setLayerState(
  layerId: string,
  state: unknown,
  options: LayerWriteOptions = {},
): Promise<{ version: number }> {
  return accessOfRun().set(layerId, state, options)
}

function accessOfRun(): LayerAccess {
  const access = storage.getStore()
  if (access === undefined)
    throw new Error(
      'There is no running job here: layer states are in reach of tools that an Offshoot worker runs. A host uses offshoot.layerState(userId, { jobId }, layerId) and offshoot.setLayerState(…).',
    )
  return access
}
