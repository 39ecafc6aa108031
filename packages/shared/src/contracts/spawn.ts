import type { UIMessage } from 'ai'
import { z } from 'zod'
import { atMostEntries } from './at-most-entries.ts'
import { botRefSchema, reasoningEffortSchema, runnerSchema, slugSchema } from './bot.ts'
import type { TerminalState } from './job-state.ts'
import type { Reason } from './reason.ts'
import type { Usage } from './usage.ts'

/** Characters of a sub-agent's first user message. */
export const MAX_MESSAGE_LENGTH = 100_000
export const DEFAULT_MAX_STEPS = 25

export const overridesSchema = z.strictObject({
  modelOverride: z.string().max(300).optional().describe('another model, as "integration:modelName"'),
  systemPromptOverride: z.string().max(100_000).optional().describe("replaces the bot's system prompt"),
  systemPromptAppend: z.string().max(100_000).optional().describe('added after the system prompt'),
  temperature: z.number().min(0).max(2).optional(),
  reasoningEffort: reasoningEffortSchema.optional(),
  maxSteps: z.number().int().min(1).max(100).optional().describe('model calls the sub-agent may make, 25 by default'),
  toolFilter: z
    .array(z.string().max(200))
    .max(200)
    .optional()
    .describe('only these tools; absent: all that the bot has'),
})
export type Overrides = z.infer<typeof overridesSchema>

/** Bytes of JSON: with the rest of the event well below the 256 KiB that Inngest takes on every plan. */
export const MAX_EVENT_DATA_BYTES = 65_536

/** An event name as Inngest takes it, and data to send along. */
export const completionEventSchema = z.strictObject({
  name: z.string().min(1).max(200),
  data: z.record(z.string(), z.json()).optional(),
})

/** What a job and everything below it may spend. Money needs the price of every model in it. */
export const budgetSchema = z.strictObject({
  maxTotalTokens: z.number().int().min(1).max(1_000_000_000_000).optional(),
  maxCostUsd: z.number().positive().max(1_000_000).optional(),
})

/** The input of the `spawnAgent` tool: what a model may say. */
export const spawnInputSchema = z.strictObject({
  bot: botRefSchema.describe('whom to spawn as: { botId }, or { botGroup, botHandle }'),
  message: z
    .string()
    .describe(
      `the sub-agent's first user message, 1 to ${MAX_MESSAGE_LENGTH} characters; it sees nothing else of this conversation`,
    ),
  mode: z
    .enum(['sync', 'async'])
    .default('sync')
    .describe('sync: wait for the result; async: get the job id at once and go on'),
  overrides: overridesSchema.optional(),
  completionEvent: completionEventSchema.optional().describe('Inngest event to send at the end; async only'),
  runAsUserId: z.string().max(200).optional().describe('run under that user: oneself or a delegate'),
  timeoutSeconds: z.number().min(1).max(86_400).optional().describe('total time from spawn to end, waits included'),
  notifyParent: z.boolean().optional().describe('async: put the outcome into your inbox and wake you'),
})
export type SpawnInput = z.infer<typeof spawnInputSchema>

/** What a program may say when it spawns: the tool's input and more. */
export const programSpawnInputSchema = spawnInputSchema.extend({
  layers: z.array(z.string().min(1).max(200)).max(20).optional(),
  steers: z.enum(['queue', 'forward']).optional(),
  priority: z
    .number()
    .int()
    .min(0)
    .max(1000)
    .optional()
    .describe('added to the priority of every delivery; higher is later'),
  lane: slugSchema.optional(),
  tags: z
    .record(z.string().max(100), z.string().max(500))
    .refine(...atMostEntries(50))
    .optional(),
  runner: runnerSchema.optional().describe('where the job runs; inline only in a host, never over HTTP'),
  budget: budgetSchema.optional(),
  parkTimeoutMs: z.number().int().min(0).max(86_400_000).optional(),
  onParentEnd: z.enum(['end', 'continue']).optional(),
  wakeIdleParent: z.boolean().optional(),
})
export type ProgramSpawnInput = z.infer<typeof programSpawnInputSchema>

export type SyncSpawnOutput = {
  mode: 'sync'
  jobId: string
  convoId: string
  state: TerminalState
  reason: Reason
  result: string | null
  /** True where `result` is only the head and tail of the job's result, as in the journal of a parent job. */
  resultTruncated?: true
  messages: UIMessage[]
  usage: Usage
  steps: number
  error?: string
  partial?: boolean
}

export type AsyncSpawnOutput = {
  mode: 'async'
  jobId: string
  convoId: string
  state: 'pending' | 'running'
  note: string
}

/** A spawn that did not happen. It left no row and no delivery behind. */
export type RefusedSpawnOutput = {
  mode: 'sync' | 'async'
  jobId: ''
  convoId: ''
  state: 'failed'
  reason: Reason
  error: string
}

export type SpawnOutput = SyncSpawnOutput | AsyncSpawnOutput | RefusedSpawnOutput

/** The sync output while the sub-agent still runs: what the host's tool yields. */
export type SpawnProgress = {
  mode: 'sync'
  jobId: string
  convoId: string
  state: 'pending' | 'running'
  message: UIMessage | null
}

/** The text that tells a model how an async result will come. */
export function asyncNote(input: { notifyParent: boolean }): string {
  return input.notifyParent
    ? 'The sub-agent works in the background. Its outcome comes to you as a message: go on with other work, then end your turn; you are called again when it is there. Do not poll.'
    : 'The sub-agent works in the background. Go on with other work and look once with checkAgent when you need the result; do not poll.'
}
