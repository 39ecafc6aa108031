// What can be decided about a spawn before its transaction: who asks, may they, for which bot, with which model and
// tools. Refusals are values; they leave nothing behind.
import { createHash } from 'node:crypto'
import { hasRedis } from '../config.ts'
import { type Bot, describeBotRef, type Runner } from '../contracts/bot.ts'
import { canonicalJson } from '../contracts/canonical-json.ts'
import type { ModelPrice } from '../contracts/price.ts'
import type { Reason } from '../contracts/reason.ts'
import {
  DEFAULT_MAX_STEPS,
  MAX_EVENT_DATA_BYTES,
  MAX_MESSAGE_LENGTH,
  type ProgramSpawnInput,
} from '../contracts/spawn.ts'
import { characterCount } from '../contracts/text.ts'
import { grantedNames, narrowGrant, type ToolGrant } from '../contracts/tool-grant.ts'
import type { AgentJob } from '../db/agent-jobs.ts'
import type { Database, Queryable } from '../db/database.ts'
import type { Grant } from '../db/generated/client.ts'
import { findDisabledLayers } from '../db/layer-states.ts'
import { storable } from '../db/stored-value.ts'
import { isAdmin, mayDelegate, rightsStand } from '../db/users.ts'
import { newId } from '../ids.ts'
import type { Runtime } from '../runtime.ts'
import { describeUnknownLayers } from './layer-state.ts'

/** Where a spawn comes from. A model's words never get in here. */
export interface SpawnOrigin {
  /** Who asks. In a running job: the job's owner. */
  userId: string
  /** Set when somebody else acts as `userId`, who may be an admin: admin rights do not pass on. */
  withoutAdminRights?: true
  delegateUserIds: readonly string[]
  /** The depth of the asking turn or job. */
  depth: number
  parentConvoId: string | null
  spaceId: string | null
  /** The running job and the tool call that asks. */
  parent?: SpawnParent
  idempotencyKey?: string
  traceparent?: string
}

export interface SpawnParent {
  jobId: string
  rootJobId: string
  ancestorIds: readonly string[]
  triggeredByIds: readonly string[]
  step: number
  toolCallId: string
  /** The layers that the parent has and that propagate. */
  layers: readonly string[]
  /** The tools that the parent has: a child's are a subset. */
  tools: ToolGrant
  /** Which right the parent itself runs on; a delegated job may not delegate further. */
  grant: Grant
  /** Where the parent runs, and so does its child. */
  runner: Runner
  deadlineMsLeft: number
}

export interface PreparedSpawn {
  /** The id that the job will have: a commit that got no answer, and is tried again, must not make a second job. */
  jobId: string
  bot: Bot
  input: ProgramSpawnInput
  origin: SpawnOrigin
  ownerId: string
  grant: Grant
  toolNames: string[]
  /** In the order in which their hooks run. */
  layers: string[]
  maxSteps: number
  timeoutMs: number
  runner: Runner
  /** Of an inline job: the worker in whose process it will run. */
  workerId: string | null
  lane: string
  /** The model that the job will call, as "integration:modelName", and its price if that is known. */
  model: string
  price: ModelPrice | undefined
  requestHash: string
}

export interface Refusal {
  refused: true
  reason: Reason
  error: string
}

export function refuse(reason: Reason, error: string): Refusal {
  return { refused: true, reason, error }
}

export async function prepareSpawn(
  runtime: Runtime,
  from: SpawnOrigin,
  asked: ProgramSpawnInput,
): Promise<PreparedSpawn | Refusal> {
  const { config } = runtime
  // Texts of models, hosts and requests come in here: from now on they are as they will be stored.
  const origin = storable(from)
  const input = storable(asked)
  if (origin.depth >= config.MAX_SPAWN_DEPTH) {
    return refuse(
      'depth_limit',
      `Maximum spawn depth (${config.MAX_SPAWN_DEPTH}) exceeded. Do this work yourself instead of spawning a sub-agent for it.`,
    )
  }
  const combination = checkCombination(input)
  if (combination !== undefined) return combination

  const ownerId = input.runAsUserId ?? origin.userId
  if (!(await parentMayRun(runtime, origin.parent))) return refuse('not_authorized', describeWithdrawn(origin.userId))
  const grant = await findGrant(runtime, origin, ownerId)
  if (grant === undefined) {
    return refuse(
      'not_authorized',
      `Not authorized to spawn sub-agent as user ${ownerId}. Allowed are yourself and users that you are a delegate of; leave runAsUserId out to run as yourself.`,
    )
  }

  const bot =
    (await runtime.extensions.resolveBot(input.bot, { userId: ownerId })) ??
    (await runtime.groups.findBot({ ref: input.bot, userId: ownerId })).bot
  if (bot === undefined) return refuse('unknown_bot', `Bot not found: ${describeBotRef(input.bot)}.`)
  const model = chooseModel(runtime, input, bot)
  if (typeof model !== 'string') return model
  const toolNames = chooseTools(bot, origin.parent, input.overrides?.toolFilter ?? [])
  if ('refused' in toolNames) return toolNames
  const place = choosePlace(runtime, origin, input, bot)
  if ('refused' in place) return place
  const layers = await chooseLayers(runtime, input, bot, origin.parent)
  if ('refused' in layers) return layers

  return {
    jobId: newId(),
    bot,
    input,
    origin,
    ownerId,
    grant,
    toolNames,
    layers,
    maxSteps: input.overrides?.maxSteps ?? DEFAULT_MAX_STEPS,
    timeoutMs: Math.ceil(
      Math.min(
        input.timeoutSeconds === undefined ? config.JOB_TIMEOUT_MS : input.timeoutSeconds * 1_000,
        origin.parent?.deadlineMsLeft ?? Infinity,
      ),
    ),
    ...place,
    lane: input.lane ?? bot.lane,
    model,
    price: runtime.extensions.prices.get(model),
    requestHash: createHash('sha256').update(canonicalJson(input)).digest('hex'),
  }
}

function checkCombination(input: ProgramSpawnInput): Refusal | undefined {
  const length = characterCount(input.message)
  if (length < 1 || length > MAX_MESSAGE_LENGTH) {
    return refuse(
      'invalid_request',
      `message must be 1 to ${MAX_MESSAGE_LENGTH} characters long; this one has ${length}.`,
    )
  }
  if (input.mode === 'sync' && input.completionEvent !== undefined) {
    return refuse(
      'invalid_request',
      'completionEvent is only valid in async mode. Leave it out, or set mode to "async".',
    )
  }
  const dataBytes = Buffer.byteLength(JSON.stringify(input.completionEvent?.data ?? {}))
  if (dataBytes > MAX_EVENT_DATA_BYTES) {
    return refuse(
      'invalid_request',
      `completionEvent.data may have ${MAX_EVENT_DATA_BYTES} bytes of JSON; this one has ${dataBytes}. Keep it yourself and send an id of it.`,
    )
  }
  if (input.mode === 'sync' && input.notifyParent === true) {
    return refuse(
      'invalid_request',
      'notifyParent is only valid in async mode. A sync spawn brings its outcome as the result of the call.',
    )
  }
  if (input.wakeIdleParent === true && input.notifyParent !== true) {
    return refuse(
      'invalid_request',
      'wakeIdleParent is only valid with notifyParent: it says when the parent reads the outcome that notifyParent brings.',
    )
  }
  return undefined
}

/** Where the job will run: where its parent runs, else as the call says, the bot, the config module; by whichever comes first. */
function choosePlace(
  { config, extensions, inline }: Runtime,
  { parent }: SpawnOrigin,
  input: ProgramSpawnInput,
  bot: Bot,
): Pick<PreparedSpawn, 'runner' | 'workerId'> | Refusal {
  const runner = parent?.runner ?? input.runner ?? bot.runner ?? extensions.runner
  if (input.runner !== undefined && input.runner !== runner)
    return refuse(
      'invalid_request',
      `A sub-agent runs where its parent runs, on the runner "${runner}". Leave runner out.`,
    )
  if (runner === 'queue') {
    if (hasRedis(config)) return { runner, workerId: null }
    return refuse(
      'invalid_request',
      'The runner "queue" is not available here: this process has no Redis. Set REDIS_URL, or set runner to "inline" in the call, the bot or the config module.',
    )
  }
  if (inline === undefined)
    return refuse(
      'invalid_request',
      'The runner "inline" is not available here. It runs jobs in a host\'s own process: set runner to "queue", or, in a host, open Offshoot with createOffshoot({ inlineRunner: createInlineRunner }).',
    )
  const workerId = inline.workerId()
  if (workerId !== undefined) return { runner, workerId }
  return refuse('invalid_request', 'The runner "inline" takes nothing more: this process is closing.')
}

/** Which right lets the asking user run a job as `ownerId`; undefined: none. Admin rights do not pass through delegation. */
async function findGrant({ database }: Runtime, origin: SpawnOrigin, ownerId: string): Promise<Grant | undefined> {
  const delegated = origin.parent !== undefined && origin.parent.grant !== 'self'
  // A child that stays with the owner of its delegated parent is delegated, too: its own children must not go further. So
  // is a job of an admin for whom somebody else acts: what it spawns would have an admin's rights.
  if (ownerId === origin.userId) return delegated || (await actsForAdmin(database, origin)) ? 'context' : 'self'
  if (delegated) return undefined
  if (origin.delegateUserIds.includes(ownerId)) return 'context'
  if (await mayDelegate(database, origin.userId, ownerId)) return 'delegate'
  return origin.withoutAdminRights !== true && (await isAdmin(database, origin.userId)) ? 'admin' : undefined
}

/** Whether somebody else acts as a user who is an admin. */
export async function actsForAdmin(
  db: Queryable,
  { userId, withoutAdminRights }: Pick<SpawnOrigin, 'userId' | 'withoutAdminRights'>,
): Promise<boolean> {
  return withoutAdminRights === true && (await isAdmin(db, userId))
}

async function parentMayRun({ database }: Runtime, parent: SpawnParent | undefined): Promise<boolean> {
  if (parent === undefined) return true
  const { jobId: id, ancestorIds, grant } = parent
  return rightsStand(database, { id, ancestorIds: [...ancestorIds], grant })
}

/** What is said where a job runs as a user as whom it may not run any more. */
export function describeWithdrawn(ownerId: string): string {
  return `Not authorized to spawn sub-agent as user ${ownerId}. The right to run as that user was taken back.`
}

/** Whom a running job's children may run as by the word of the host: a delegated job does not delegate further. */
export function delegatesOfJob({ grant, delegateUserIds }: Pick<AgentJob, 'grant' | 'delegateUserIds'>): string[] {
  return grant === 'self' ? delegateUserIds : []
}

function chooseModel(runtime: Runtime, input: ProgramSpawnInput, bot: Bot): string | Refusal {
  const model = input.overrides?.modelOverride ?? `${bot.integration}:${bot.modelName}`
  const integration = splitModel(model)?.integration
  if (integration === undefined) {
    return refuse('invalid_request', `Invalid modelOverride format: "${model}". Expected "integration:modelName".`)
  }
  if (runtime.extensions.providers.has(integration)) return model
  return refuse(
    'invalid_request',
    `Unknown model provider: ${integration}. Known: ${[...runtime.extensions.providers.keys()].join(', ')}.`,
  )
}

/** Splits `"integration:modelName"` at the first colon; model names may hold colons. */
export function splitModel(model: string): { integration: string; modelName: string } | undefined {
  const colon = model.indexOf(':')
  if (colon < 1 || colon === model.length - 1) return undefined
  return { integration: model.slice(0, colon), modelName: model.slice(colon + 1) }
}

/** Those that the spawn names, else the parent's that take part in the parent itself, and then the bot's own. */
async function chooseLayers(
  { database, extensions }: Runtime,
  input: ProgramSpawnInput,
  bot: Bot,
  parent: SpawnParent | undefined,
): Promise<string[] | Refusal> {
  const inherited = input.layers === undefined ? await inheritedLayers(database, parent) : []
  const layers = [...new Set(input.layers ?? [...inherited, ...bot.layers])]
  const unknown = describeUnknownLayers(extensions, layers)
  return unknown === undefined ? layers : refuse('invalid_request', unknown)
}

async function inheritedLayers(database: Database, parent: SpawnParent | undefined): Promise<string[]> {
  if (parent === undefined || parent.layers.length === 0) return []
  const disabled = await findDisabledLayers(database, parent.jobId)
  return parent.layers.filter((id) => !disabled.has(id))
}

function chooseTools(bot: Bot, parent: SpawnParent | undefined, filter: readonly string[]): string[] | Refusal {
  const { grant, unknown } = narrowGrant(bot, parent?.tools, filter)
  if (unknown.length === 0) return grantedNames(grant)
  const known = grantedNames(narrowGrant(bot, parent?.tools, []).grant)
  return refuse('unknown_tool', `Unknown tools: ${unknown.join(', ')}. Known: ${known.join(', ')}.`)
}
