// What a host imports: the sub-agent tools for its own `streamText`, and the operations for its own code.
import type { ToolSet } from 'ai'
import { type AgentHandle, type AgentOutcome, createAgentHandle, refusedHandle } from './agent-handle.ts'
import { type AbortInput, abortInputSchema, type AbortOutput } from './contracts/abort.ts'
import { type AgentJobView, listInputSchema } from './contracts/agent-job.ts'
import { checkInputSchema, type CheckOutput } from './contracts/check.ts'
import { programSpawnInputSchema } from './contracts/spawn.ts'
import { loadConfig } from './config.ts'
import { storedText } from './db/stored-value.ts'
import { isAdmin } from './db/users.ts'
import { createExtensions, type ExtensionsInput, loadExtensions } from './extensions.ts'
import type { LayerWriteOptions, StoredLayerState } from './layers.ts'
import { createLogger, type Logger } from './logger.ts'
import { abortAgent } from './operations/abort-agent.ts'
import { checkAgentWithTotals, findReadableJob } from './operations/check-agent.ts'
import { type LayerAddress, readLayer, setLayer } from './operations/layer-state.ts'
import { listAgents } from './operations/list-agents.ts'
import type { SpawnOrigin } from './operations/prepare-spawn.ts'
import type { JobReader } from './operations/readable-jobs.ts'
import { type InlineRunnerFactory, openRuntime } from './runtime.ts'
import { getSpawnContext, runWithSpawnContext, type SpawnContext } from './spawn-context.ts'
import { spawnAgent } from './operations/spawn-agent.ts'
import { type AgentToolsOptions, createAgentTools } from './tools/agent-tools.ts'
import { originOfContext, refusalOf, runSpawn, runSpawnToEnd } from './tools/spawn-agent.ts'
import { withLimit } from './with-limit.ts'
import { z } from 'zod'

/** Inline jobs have ended when `close` comes to this; a job on the queue may run for hours. */
const OUTCOME_LIMIT_MS = 2_000

export interface OffshootOptions {
  /** Settings as in `.env.example`; what is not given comes from `process.env`. */
  environment?: Record<string, string | undefined>
  /** Instead of the module named by `OFFSHOOT_CONFIG`. */
  extensions?: ExtensionsInput
  logger?: Logger
  /**
   * `createInlineRunner` of `@offshoot/worker/inline-runner`: jobs of the runner `inline` run in this process. With it there
   * need be no Redis, as long as no job is to run on the queue.
   */
  inlineRunner?: InlineRunnerFactory
}

const idempotencyKeySchema = z.string().min(1).max(200)

export type ProgramSpawn = z.input<typeof programSpawnInputSchema>

/** Which live jobs; without any field all that the user may see. */
export interface LiveFilter {
  /** Spawned from this convo of the host. */
  parentConvoId?: string
  /** Of this tree. */
  rootJobId?: string
  /** Run as this user. */
  ownerId?: string
  /** 1 to 200, by default 50. */
  limit?: number
  /** `nextCursor` of the page before. */
  cursor?: string
}

/** A handle with the job as it stood when it was listed, the tags given at spawn included. */
export type LiveAgent = AgentHandle & { readonly job: AgentJobView }

export interface Offshoot {
  /**
   * spawnAgent, checkAgent and abortAgent, for `streamText({ tools })` inside `runWithSpawnContext`; with
   * `{ extended: true }` also listAgents and messageAgent, with `{ readResult: true }` also readResult.
   */
  tools(options?: AgentToolsOptions): ToolSet
  runWithSpawnContext: typeof runWithSpawnContext
  /**
   * Spawns for the caller in `context`. Resolves as soon as the spawn is committed, in either mode. A refusal is a handle,
   * too: its id is empty, its status `failed`, and its outcome says what is allowed.
   */
  spawn(context: SpawnContext, input: ProgramSpawn, options?: { idempotencyKey?: string }): Promise<AgentHandle>
  /** Spawns in sync mode and resolves with the outcome. `signal` ends the sub-agent, not only the wait. */
  run(
    context: SpawnContext,
    input: Omit<ProgramSpawn, 'mode'>,
    options?: { signal?: AbortSignal; idempotencyKey?: string },
  ): Promise<AgentOutcome>
  /** The handle of a job, in any process; undefined for one that is unknown or not the user's. */
  attach(userId: string, jobId: string): Promise<AgentHandle | undefined>
  /** The user's jobs that have not ended, newest first. */
  listLive(userId: string, filter?: LiveFilter): Promise<{ agents: LiveAgent[]; nextCursor?: string }>
  check(userId: string, input: z.input<typeof checkInputSchema>): Promise<CheckOutput>
  abort(userId: string, input: AbortInput): Promise<AbortOutput>
  /**
   * What a context layer of a job, or of a top-level convo, holds. Null: nothing yet, or there is no such layer, job or
   * convo of the user's. A turn's state is its convo's; a convo of the host's own belongs to the user who wrote first.
   */
  layerState(userId: string, of: LayerAddress, layerId: string): Promise<StoredLayerState | null>
  /**
   * Writes it, and answers its new version; sub-agents that run with the layer hear of it. Null: there is none such of the
   * user's.
   * @throws LayerVersionError when `version` is given and not the one that is there
   */
  setLayerState(
    userId: string,
    of: LayerAddress,
    layerId: string,
    state: unknown,
    options?: LayerWriteOptions,
  ): Promise<{ version: number } | null>
  /** What this process has counted, as text for Prometheus: spawns, refusals, what was told to others. */
  metrics(): Promise<string>
  /** Ends inline jobs, if there are any, and closes every connection. A second call waits for the first. */
  close(): Promise<void>
}

/**
 * Connects a host to Offshoot's Postgres and Redis. Call `close` when the host stops.
 * @throws ConfigError naming every setting that is missing or wrong
 */
export async function createOffshoot(options: OffshootOptions = {}): Promise<Offshoot> {
  const { inlineRunner: createInlineRunner } = options
  const runsInline = createInlineRunner !== undefined
  const config = loadConfig({ ...process.env, ...options.environment }, { redis: runsInline ? 'optional' : 'required' })
  const logger = options.logger ?? createLogger({ level: config.LOG_LEVEL, name: 'offshoot' })
  const extensions =
    options.extensions === undefined ? await loadExtensions(config) : createExtensions(config, options.extensions)
  const runtime = openRuntime({ config, logger, extensions, name: 'host', runsInline })
  const inlineRunner = await createInlineRunner?.(runtime).catch(async (error: unknown) => {
    await runtime.close()
    throw error
  })
  const userReader = async (userId: string) => ({
    userId,
    admin: await isAdmin(runtime.database, userId),
  })
  const readerOf = async (userId: string): Promise<JobReader> => userReader(userId)
  const originOf = async (context: SpawnContext, idempotencyKey: string | undefined): Promise<SpawnOrigin> => {
    const origin = await originOfContext(runtime, context)
    return idempotencyKey === undefined
      ? origin
      : { ...origin, idempotencyKey: idempotencyKeySchema.parse(idempotencyKey) }
  }
  const whoCalls = async () => {
    const userId = storedText(getSpawnContext().userId)
    return { reader: await readerOf(userId), actorId: userId }
  }
  const { waitedFor, run, untilAllHaveIt } = trackWaits()
  const handleOf = (jobId: string, userId: string): AgentHandle => {
    const handle = createAgentHandle(runtime, jobId, { userId, reader: () => readerOf(userId) })
    return { ...handle, await: (timeoutMs) => waitedFor(handle.await(timeoutMs)) }
  }
  let closing: Promise<void> | undefined
  async function close(): Promise<void> {
    if (inlineRunner !== undefined) {
      await inlineRunner.close()
      await untilAllHaveIt()
    }
    await runtime.close()
  }
  return {
    tools: (toolsOptions) => createAgentTools(runtime, { whoCalls, run }, toolsOptions),
    runWithSpawnContext,
    async spawn(context, asked, { idempotencyKey } = {}) {
      const input = programSpawnInputSchema.parse(asked)
      const answer = await spawnAgent(runtime, await originOf(context, idempotencyKey), input)
      return answer.kind === 'accepted'
        ? handleOf(answer.job.id, storedText(context.userId))
        : refusedHandle(refusalOf(input, answer))
    },
    async run(context, asked, { signal, idempotencyKey } = {}) {
      const input = programSpawnInputSchema.parse({ ...asked, mode: 'sync' })
      const origin = await originOf(context, idempotencyKey)
      return waitedFor(runSpawnToEnd(runtime, origin, input, signal))
    },
    async attach(asked, jobId) {
      const userId = storedText(asked)
      const job = await findReadableJob(runtime, await readerOf(userId), jobId)
      return job === null ? undefined : handleOf(job.id, userId)
    },
    async listLive(asked, filter = {}) {
      const userId = storedText(asked)
      const page = await listAgents(runtime, await readerOf(userId), {
        ...listInputSchema.parse(filter),
        live: true,
      })
      return {
        ...(page.nextCursor === undefined ? {} : { nextCursor: page.nextCursor }),
        agents: page.jobs.map((job) => ({ ...handleOf(job.jobId, userId), job })),
      }
    },
    check: async (userId, input) =>
      checkAgentWithTotals(runtime, await readerOf(storedText(userId)), checkInputSchema.parse(input)),
    abort: async (userId, input) =>
      abortAgent(runtime, await readerOf(storedText(userId)), abortInputSchema.parse(input), storedText(userId)),
    layerState: async (userId, of, layerId) =>
      readLayer(runtime, await userReader(storedText(userId)), of, storedText(layerId)),
    setLayerState: async (userId, of, layerId, state, { version } = {}) =>
      setLayer(runtime, await userReader(storedText(userId)), of, {
        layerId: storedText(layerId),
        state,
        ...(version === undefined ? {} : { version }),
      }),
    metrics: () => runtime.metrics.registry.metrics(),
    close: () => (closing ??= close()),
  }
}

/** Who waits for an outcome: `close` lets them have it first. */
function trackWaits() {
  const waiting = new Set<Promise<unknown>>()
  function waitedFor<T>(outcome: Promise<T>): Promise<T> {
    waiting.add(outcome)
    return outcome.finally(() => waiting.delete(outcome))
  }
  const run: typeof runSpawn = async function* run(...spawn) {
    const over = Promise.withResolvers<void>()
    void waitedFor(over.promise)
    try {
      yield* runSpawn(...spawn)
    } finally {
      over.resolve()
    }
  }
  return {
    waitedFor,
    run,
    untilAllHaveIt: () => withLimit(Promise.allSettled(waiting), OUTCOME_LIMIT_MS).catch(() => undefined),
  }
}
