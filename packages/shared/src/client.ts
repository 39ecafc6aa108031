// What a host imports: the sub-agent tools for its own `streamText`, and the operations for its own code.
import type { ToolSet } from 'ai'
import { type AbortInput, abortInputSchema, type AbortOutput } from './contracts/abort.ts'
import { type CheckInput, checkInputSchema, type CheckOutput } from './contracts/check.ts'
import { type ProgramSpawnInput, programSpawnInputSchema, type SpawnOutput } from './contracts/spawn.ts'
import { READ_RESULT } from './contracts/truncated-result.ts'
import { loadConfig } from './config.ts'
import { storedText } from './db/stored-value.ts'
import { isAdmin } from './db/users.ts'
import { createExtensions, type ExtensionsInput, loadExtensions } from './extensions.ts'
import { createLogger, type Logger } from './logger.ts'
import { abortAgent } from './operations/abort-agent.ts'
import { checkAgent } from './operations/check-agent.ts'
import type { JobReader } from './operations/readable-jobs.ts'
import { openRuntime } from './runtime.ts'
import { getSpawnContext, runWithSpawnContext, type SpawnContext } from './spawn-context.ts'
import { abortAgentTool, checkAgentTool } from './tools/job-tools.ts'
import { readResultTool } from './tools/read-result.ts'
import { originOfContext, runSpawn, spawnAgentToolForHost } from './tools/spawn-agent.ts'
import { z } from 'zod'

export interface OffshootOptions {
  /** Settings as in `.env.example`; what is not given comes from `process.env`. */
  environment?: Record<string, string | undefined>
  /** Instead of the module named by `OFFSHOOT_CONFIG`. */
  extensions?: ExtensionsInput
  logger?: Logger
}

const idempotencyKeySchema = z.string().min(1).max(200)

export interface HostToolOptions {
  /**
   * Adds `readResult`, with which the model reads the rest of a sub-agent's result that is too long to be shown whole
   * (50,000 characters). Without it the model gets head and tail. Default: false.
   */
  readResult?: boolean
}

export interface Offshoot {
  /** spawnAgent, checkAgent and abortAgent, for `streamText({ tools })` inside `runWithSpawnContext`. */
  tools(options?: HostToolOptions): ToolSet
  runWithSpawnContext: typeof runWithSpawnContext
  /** Spawns for the caller in `context`; in sync mode resolves with the outcome. Refusals are outputs, too. */
  spawn(
    context: SpawnContext,
    input: z.input<typeof programSpawnInputSchema>,
    options?: { signal?: AbortSignal; idempotencyKey?: string },
  ): Promise<SpawnOutput>
  check(userId: string, input: z.input<typeof checkInputSchema>): Promise<CheckOutput>
  abort(userId: string, input: AbortInput): Promise<AbortOutput>
  /** What this process has counted, as text for Prometheus: spawns, refusals, what was told to others. */
  metrics(): Promise<string>
  close(): Promise<void>
}

/**
 * Connects a host to Offshoot's Postgres and Redis. Call `close` when the host stops.
 * @throws ConfigError naming every setting that is missing or wrong
 */
export async function createOffshoot(options: OffshootOptions = {}): Promise<Offshoot> {
  const config = loadConfig({ ...process.env, ...options.environment })
  const logger = options.logger ?? createLogger({ level: config.LOG_LEVEL, name: 'offshoot' })
  const extensions =
    options.extensions === undefined ? await loadExtensions(config) : createExtensions(config, options.extensions)
  const runtime = openRuntime({ config, logger, extensions, name: 'host' })
  const readerOf = async (userId: string): Promise<JobReader> => ({
    userId,
    admin: await isAdmin(runtime.database, userId),
  })
  const whoCalls = async () => {
    const userId = storedText(getSpawnContext().userId)
    return { reader: await readerOf(userId), actorId: userId }
  }
  return {
    tools: ({ readResult = false } = {}) => ({
      spawnAgent: spawnAgentToolForHost(runtime, { canReadOn: readResult }),
      checkAgent: checkAgentTool(runtime, whoCalls, { canReadOn: readResult }),
      abortAgent: abortAgentTool(runtime, whoCalls, { canReadOn: readResult }),
      ...(readResult ? { [READ_RESULT]: readResultTool(runtime, whoCalls) } : {}),
    }),
    runWithSpawnContext,
    async spawn(context, input, { signal, idempotencyKey } = {}) {
      const parsed: ProgramSpawnInput = programSpawnInputSchema.parse(input)
      const from = await originOfContext(runtime, context)
      const origin =
        idempotencyKey === undefined ? from : { ...from, idempotencyKey: idempotencyKeySchema.parse(idempotencyKey) }
      let output: SpawnOutput | undefined
      for await (const progress of runSpawn(runtime, origin, parsed, signal))
        if (!('message' in progress)) output = progress
      if (output === undefined) throw new Error('The spawn ended without an outcome.')
      return output
    },
    check: async (userId, input) =>
      checkAgent(runtime, await readerOf(storedText(userId)), checkInputSchema.parse(input) satisfies CheckInput),
    abort: async (userId, input) =>
      abortAgent(runtime, await readerOf(storedText(userId)), abortInputSchema.parse(input), storedText(userId)),
    metrics: () => runtime.metrics.registry.metrics(),
    close: () => runtime.close(),
  }
}
