import { z } from 'zod'
import { atMostEntries } from './at-most-entries.ts'

/** How a caller names a bot: by id, or by group and handle. Exactly one of the two forms. */
export const botRefSchema = z.union(
  [
    z.strictObject({ botId: z.string().min(1).max(200) }),
    z.strictObject({ botGroup: z.string().min(1).max(100), botHandle: z.string().min(1).max(100) }),
  ],
  { error: 'must be { botId } or { botGroup, botHandle }, exactly one of the two' },
)
export type BotRef = z.infer<typeof botRefSchema>

export const REASONING_EFFORTS = ['minimal', 'low', 'medium', 'high'] as const
export const reasoningEffortSchema = z.enum(REASONING_EFFORTS)

export const RUNNERS = ['queue', 'inline'] as const
export const runnerSchema = z.enum(RUNNERS)
export type Runner = z.infer<typeof runnerSchema>

/** A group, a handle or a lane: lower-case words joined by `-`, `_` or `.`. */
export const slugSchema = z
  .string()
  .min(1)
  .max(100)
  .regex(/^[a-z0-9]+([-_.][a-z0-9]+)*$/, 'use lower-case letters and digits, joined by "-", "_" or "."')

/** An MCP server that a bot may use (streamable HTTP). Its tools are called `<name>_<tool>`. */
export const mcpServerSchema = z.strictObject({
  name: z
    .string()
    .max(24)
    .regex(/^[a-z0-9]+(-[a-z0-9]+)*$/, 'use lower-case letters and digits, joined by "-"'),
  url: z.url({ protocol: /^https?$/, error: 'must be an http:// or https:// address' }).max(2_000),
  headers: z
    .record(
      z
        .string()
        .max(200)
        .regex(/^[\w-]+$/),
      z
        .string()
        .max(4_000)
        .regex(/^[\x20-\x7e]*$/),
    )
    .refine(...atMostEntries(50))
    .optional()
    .describe("sent with every request; ${MCP_SECRET_X} stands for that variable of the worker's environment"),
  tools: z
    .array(z.string().min(1).max(128))
    .max(100)
    .optional()
    .describe('only these of its tools, by the names that the server gives them; absent: all'),
})
export type McpServer = z.infer<typeof mcpServerSchema>

/** What may be written of a bot; `group` and `handle` come from its address. */
export const botWriteSchema = z.strictObject({
  name: z.string().min(1).max(200),
  integration: z.string().min(1).max(100).describe('name of the model provider, such as "openai"'),
  modelName: z.string().min(1).max(200),
  systemPrompt: z.string().max(100_000).default(''),
  childPrompts: z
    .record(z.string().max(100), z.string().max(100_000))
    .refine(...atMostEntries(20))
    .optional(),
  temperature: z.number().min(0).max(2).optional(),
  reasoningEffort: reasoningEffortSchema.optional(),
  verbosity: z.enum(['low', 'medium', 'high']).optional(),
  serviceTier: z.enum(['auto', 'default', 'flex', 'priority']).optional(),
  storeResponses: z
    .boolean()
    .default(false)
    .describe('OpenAI: let the provider keep the responses; the journal then holds references'),
  toolNames: z.array(z.string().min(1).max(200)).max(200).default([]),
  mcpServers: z
    .array(mcpServerSchema)
    .max(20)
    .refine((servers) => new Set(servers.map(({ name }) => name)).size === servers.length, 'two have the same name')
    .default([]),
  layers: z.array(z.string().min(1).max(200)).max(20).default([]),
  runner: runnerSchema.optional(),
  lane: slugSchema.default('default'),
})
export type BotWrite = z.infer<typeof botWriteSchema>

/** A bot as an agent job runs it. A host's own `resolveBot` answers in this shape too. */
export const botSchema = botWriteSchema.extend({
  id: z.string().min(1),
  group: slugSchema,
  handle: slugSchema,
  /** Whose bot it is; null: everybody may use it. */
  ownerId: z.string().nullable().default(null),
  version: z.number().int().default(1),
})
export type Bot = z.infer<typeof botSchema>

export function describeBotRef(ref: BotRef): string {
  return 'botId' in ref ? ref.botId : `${ref.botGroup}/${ref.botHandle}`
}

export function botLabel(bot: { group: string; handle: string }): string {
  return `${bot.group}/${bot.handle}`
}
