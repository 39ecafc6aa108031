// The config module (`OFFSHOOT_CONFIG`): what a product adds to Offshoot. Every process loads it, so that a name means
// the same everywhere.
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { createOpenAI } from '@ai-sdk/openai'
import type { ProviderV4 } from '@ai-sdk/provider'
import { type InngestFunction, isInngestFunction } from 'inngest'
import { z } from 'zod'
import { type Config, ConfigError } from './config.ts'
import { type Bot, type BotRef, type Runner, runnerSchema } from './contracts/bot.ts'
import { type ModelPrice, modelPriceSchema } from './contracts/price.ts'
import { READ_RESULT } from './contracts/truncated-result.ts'
import { type ContextLayer, contextLayerSchema } from './layers.ts'
import { createMergeWindow, type MergeWindow } from './merge-window.ts'
import { createMergingFetch } from './merging-fetch.ts'
import { storable } from './db/stored-value.ts'
import { type AiTool, registerAiTool } from './tools/registry.ts'

/** Makes the provider for one job. It is called once an attempt; keep clients outside of it. */
export type ProviderFactory = (job: { userId: string; jobId: string }) => ProviderV4

export interface ExtensionsInput {
  tools?: AiTool[]
  /** Model providers by the name that stands before the colon in `modelOverride`. */
  providers?: Record<string, ProviderFactory>
  /** What models cost, by "integration:modelName"; a model that is not here has an unknown cost. */
  prices?: Record<string, ModelPrice>
  /** Answers before the Bot table, so that a host keeps its own bots; undefined: look in the table. */
  resolveBot?: (ref: BotRef, caller: { userId: string }) => Promise<Bot | undefined> | Bot | undefined
  /** Where jobs run when neither the call nor the bot says so. Default: `queue`. */
  runner?: Runner
  /** Functions that Inngest calls at the API's /api/inngest, made with `inngest.createFunction`. */
  inngestFunctions?: InngestFunction.Any[]
  /** Context layers, made with `defineLayer`; bots and spawns name them by id. */
  layers?: ContextLayer[]
}

export interface Extensions {
  /** In which the deltas of models are joined, by the built-in provider and by the journal. */
  mergeWindow: MergeWindow
  providers: ReadonlyMap<string, ProviderFactory>
  prices: ReadonlyMap<string, ModelPrice>
  resolveBot: (ref: BotRef, caller: { userId: string }) => Promise<Bot | undefined>
  runner: Runner
  inngestFunctions: readonly InngestFunction.Any[]
  layers: ReadonlyMap<string, ContextLayer>
}

/** Types the config module: `export default defineConfig({ tools: [...] })`. */
export function defineConfig(input: ExtensionsInput): ExtensionsInput {
  return input
}

const extensionsSchema = z.strictObject({
  tools: z
    .array(
      z.looseObject({
        id: z.string().min(1),
        group: z.string(),
        userSelect: z.boolean(),
        tool: z.looseObject({}),
        maxResultLength: z.number().int().min(1_000).max(10_000_000).optional(),
      }),
    )
    .optional(),
  providers: z
    .record(
      z.string().regex(/^[^:]+$/),
      z.custom((value) => typeof value === 'function', 'must be a function'),
      { error: ({ code }) => (code === 'invalid_key' ? 'a name may not be empty or contain a colon' : undefined) },
    )
    .optional(),
  prices: z.record(z.string().regex(/^[^:]+:.+$/, 'must be "integration:modelName"'), modelPriceSchema).optional(),
  resolveBot: z.custom((value) => typeof value === 'function', 'must be a function').optional(),
  runner: runnerSchema.optional(),
  inngestFunctions: z
    .array(z.custom((value) => isInngestFunction(value), 'must be made with inngest.createFunction'))
    .optional(),
  layers: z.array(contextLayerSchema).optional(),
})

/**
 * Loads the config module, registers its tools and adds the built-in provider `openai`.
 * @throws ConfigError when the module cannot be loaded or has another shape
 */
export async function loadExtensions(config: Config): Promise<Extensions> {
  return createExtensions(
    config,
    config.OFFSHOOT_CONFIG === undefined ? {} : await importConfigModule(config.OFFSHOOT_CONFIG),
  )
}

/** Offshoot's own tools: no other may have these names. */
export const OWN_TOOLS: ReadonlySet<string> = new Set([
  'spawnAgent',
  'checkAgent',
  'abortAgent',
  'listAgents',
  'messageAgent',
  READ_RESULT,
])

/** The same from values, for a host that passes them to `createOffshoot`. */
export function createExtensions(config: Config, input: ExtensionsInput): Extensions {
  for (const tool of input.tools ?? []) {
    if (OWN_TOOLS.has(tool.id))
      throw new ConfigError(`A tool may not be named "${tool.id}": that is one of Offshoot's own. Choose another name.`)
    registerAiTool(tool)
  }
  const mergeWindow = createMergeWindow({ chunkMs: config.MODEL_CHUNK_MS })
  const openai = createOpenAI({
    ...(config.OPENAI_BASE_URL === undefined ? {} : { baseURL: config.OPENAI_BASE_URL }),
    ...openaiKey(config),
    fetch: createMergingFetch(mergeWindow),
  })
  return {
    mergeWindow,
    providers: new Map<string, ProviderFactory>([['openai', () => openai], ...Object.entries(input.providers ?? {})]),
    prices: new Map(Object.entries(input.prices ?? {})),
    resolveBot: async (ref, caller) => storable(await input.resolveBot?.(ref, caller)),
    runner: input.runner ?? 'queue',
    inngestFunctions: input.inngestFunctions ?? [],
    layers: layersById(input.layers ?? []),
  }
}

function layersById(layers: readonly ContextLayer[]): Map<string, ContextLayer> {
  const byId = new Map<string, ContextLayer>()
  for (const layer of layers) {
    if (byId.has(layer.id)) throw new ConfigError(`Two layers have the id "${layer.id}". Give each one of its own.`)
    byId.set(layer.id, layer)
  }
  return byId
}

/** An endpoint of one's own may need no key; the SDK insists on one. */
function openaiKey(config: Config): { apiKey?: string } {
  if (config.OPENAI_API_KEY !== undefined) return { apiKey: config.OPENAI_API_KEY }
  return config.OPENAI_BASE_URL === undefined ? {} : { apiKey: 'none' }
}

async function importConfigModule(file: string): Promise<ExtensionsInput> {
  const absolute = path.resolve(file)
  let module: unknown
  try {
    module = await import(pathToFileURL(absolute).href)
  } catch (cause) {
    throw new ConfigError(
      `OFFSHOOT_CONFIG: cannot load ${absolute}: ${cause instanceof Error ? cause.message : String(cause)}`,
      { cause },
    )
  }
  const exported = typeof module === 'object' && module !== null && 'default' in module ? module.default : undefined
  const parsed = extensionsSchema.safeParse(exported)
  if (!parsed.success) {
    throw new ConfigError(
      `OFFSHOOT_CONFIG: ${absolute} must have a default export made with defineConfig({ tools, providers, prices, resolveBot, runner, inngestFunctions, layers }).\n${z.prettifyError(parsed.error)}`,
    )
  }
  // The schema checked the shape; the functions inside are the product's own.
  return exported as ExtensionsInput
}
