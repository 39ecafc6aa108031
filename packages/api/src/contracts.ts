// What HTTP adds to the contracts of packages/shared: queries, bodies and answers of the routes.
import { messageInputSchema, messageOptionsSchema } from '@offshoot/shared/contracts/message'
import { retryInputSchema } from '@offshoot/shared/contracts/retry'
import { subtreeTotalsSchema } from '@offshoot/shared/contracts/agent-job'
import { botRefSchema, botSchema } from '@offshoot/shared/contracts/bot'
import { checkInputSchema } from '@offshoot/shared/contracts/check'
import { jobStateSchema, TERMINAL_STATES, waitingOnSchema } from '@offshoot/shared/contracts/job-state'
import { OUTBOX_KINDS } from '@offshoot/shared/contracts/outbox'
import { reasonSchema } from '@offshoot/shared/contracts/reason'
import { usageSchema } from '@offshoot/shared/contracts/usage'
import type { UIMessage } from 'ai'
import { z } from 'zod'

/** Seconds that a sync spawn waits for its outcome before it answers 202. */
const SPAWN_WAIT_SECONDS = 60
const MAX_SPAWN_WAIT_SECONDS = 300

export const spawnQuerySchema = z.strictObject({
  wait: z.coerce
    .number()
    .min(0)
    .max(MAX_SPAWN_WAIT_SECONDS)
    .default(SPAWN_WAIT_SECONDS)
    .describe('sync: seconds to wait for the outcome before the answer is 202 with the job'),
})

export const checkQuerySchema = z.strictObject({
  includePartial: z.stringbool().default(false).describe('also the messages so far and the live text'),
  waitSeconds: z.coerce
    .number()
    .pipe(checkInputSchema.shape.waitSeconds.unwrap())
    .default(0)
    .describe('wait until the job ends or this time is up'),
})

/** Characters of a result that one answer holds at most. */
const MAX_PAGE_LENGTH = 1_000_000

export const resultQuerySchema = z.strictObject({
  offset: z.coerce.number().int().min(0).max(1_000_000_000).default(0).describe('characters to skip'),
  length: z.coerce.number().int().min(1).max(MAX_PAGE_LENGTH).default(100_000).describe('characters to read'),
})

export const retryBodySchema = retryInputSchema.omit({ jobId: true })

/** A message to a running job. */
export const messageBodySchema = messageOptionsSchema.extend({ text: messageInputSchema.shape.message })

export const abortBodySchema = z.strictObject({ reason: z.string().max(2_000).optional() })

export const eventsQuerySchema = z.strictObject({
  cursor: z
    .string()
    .regex(/^\d{1,18}$/, 'must be the nextCursor of an earlier page')
    .optional(),
  limit: z.coerce.number().int().min(1).max(1_000).default(200),
})

export const streamQuerySchema = z.object({
  cursor: z.string().optional().describe('the id of the last event that was seen; Last-Event-ID wins over it'),
})

/** A part of a UIMessage. What it holds is the AI SDK's business. */
const uiPartSchema = z.custom<UIMessage['parts'][number]>().meta({
  description: "a part of a UIMessage of Vercel's AI SDK",
  override: { type: 'object', required: ['type'], properties: { type: { type: 'string' } } },
})
export const uiMessageSchema = z.custom<UIMessage>().meta({
  description: "a UIMessage of Vercel's AI SDK",
  override: {
    type: 'object',
    required: ['id', 'role', 'parts'],
    properties: {
      id: { type: 'string' },
      role: { type: 'string', enum: ['system', 'user', 'assistant'] },
      parts: { type: 'array', items: { type: 'object', required: ['type'], properties: { type: { type: 'string' } } } },
      metadata: {},
    },
  },
})

/** The output of a sync spawn (contracts/spawn.ts). */
export const syncSpawnSchema = z.object({
  mode: z.literal('sync'),
  jobId: z.string(),
  convoId: z.string(),
  state: z.enum(TERMINAL_STATES),
  reason: reasonSchema,
  result: z.string().nullable(),
  messages: z.array(uiMessageSchema),
  usage: usageSchema,
  steps: z.number().int(),
  error: z.string().optional(),
  partial: z.boolean().optional(),
})
/** The output of an async spawn (contracts/spawn.ts). */
export const asyncSpawnSchema = z.object({
  mode: z.literal('async'),
  jobId: z.string(),
  convoId: z.string(),
  state: z.enum(['pending', 'running']),
  note: z.string(),
})
export const checkOutputSchema = z.object({
  jobId: z.string(),
  state: jobStateSchema,
  reason: reasonSchema.optional(),
  waitingOn: waitingOnSchema.optional(),
  result: z.string().optional(),
  messages: z.array(uiMessageSchema).optional(),
  usage: usageSchema.optional().describe("the job's own, up to now"),
  costUsd: z.number().nullable().optional().describe("the job's own; null is unknown, which is not 0"),
  subtree: subtreeTotalsSchema.optional().describe('of the job and all its descendants'),
  steps: z.number().int().optional(),
  error: z.string().optional(),
  partial: z.boolean().optional(),
  progress: z
    .object({
      step: z.number().int().describe('model calls made so far'),
      maxSteps: z.number().int(),
      currentTool: z.string().optional(),
      lastText: z.string().optional(),
      queuePosition: z.number().int().optional().describe('1 is the next of its lane to be taken by a worker'),
      note: z.string().optional().describe('what holds up a job that is to be taken by a worker'),
    })
    .optional(),
})
export const abortOutputSchema = z.object({
  jobId: z.string(),
  state: jobStateSchema.describe('what is true after the call'),
  partialResult: z.string().optional(),
  abortedDescendants: z.number().int(),
  note: z.string().optional(),
  error: z.string().optional(),
})

export const createConvoSchema = z.strictObject({ bot: botRefSchema })
export const convoSchema = z.object({
  convoId: z.string(),
  bot: z.string().describe('group/handle'),
  botId: z.string(),
  ownerId: z.string(),
  createdAt: z.string(),
})

export const messagesQuerySchema = z.strictObject({
  cursor: z
    .string()
    .regex(/^\d{1,9}$/, 'must be the nextCursor of an earlier page')
    .optional()
    .describe('older messages than those of the page that gave it'),
  limit: z.coerce.number().int().min(1).max(1_000).default(200),
})

export const messagePageSchema = z.object({
  convoId: z.string(),
  messages: z.array(uiMessageSchema),
  nextCursor: z.string().optional(),
})

/** Base64 data only: a worker must not fetch addresses that a user names. */
const userPartSchema = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('text'), text: z.string(), state: z.enum(['streaming', 'done']).optional() }),
  z.strictObject({
    type: z.literal('file'),
    mediaType: z
      .string()
      .max(200)
      .regex(/^[\w.+-]+\/[\w.+-]+$/, 'must be a media type, such as image/png'),
    filename: z.string().max(300).optional(),
    url: z.string().regex(/^data:[^;,]+;base64,[A-Za-z0-9+/]+={0,2}$/, 'must be a data: address with base64 content'),
  }),
])

/** The message that a turn answers: the body's last one of role user. */
export const userMessageSchema = z.strictObject({
  id: z.string().max(200).optional(),
  role: z.literal('user'),
  parts: z.array(userPartSchema).min(1).max(100),
  metadata: z.unknown().optional(),
})

/** The body that the AI SDK's chat transport sends. Only its last user message is read further. */
export const chatBodySchema = z.strictObject({
  id: z.string().max(200).optional().describe('ignored: the convo is the one in the address'),
  messages: z
    .array(z.looseObject({ role: z.string() }))
    .max(10_000)
    .default([])
    .describe('only the last message of role user counts; the history comes from Postgres'),
  trigger: z.enum(['submit-message', 'regenerate-message']).default('submit-message'),
  messageId: z
    .string()
    .max(200)
    .optional()
    .describe('ignored: the last answer is the one that regenerate-message replaces'),
  ifBusy: z
    .enum(['steer', 'reject'])
    .default('steer')
    .describe('while a turn is live: steer it with this message, or answer 409'),
})

/** A bot as those see it who may use it. What it was told is for those who may change it, its MCP servers for admins. */
export const botViewSchema = botSchema.omit({ systemPrompt: true, childPrompts: true, mcpServers: true }).extend({
  systemPrompt: botSchema.shape.systemPrompt.optional(),
  childPrompts: botSchema.shape.childPrompts,
  mcpServers: botSchema.shape.mcpServers.optional(),
})
export const botListSchema = z.object({ bots: z.array(botViewSchema) })

export const stepSchema = z.object({
  index: z.number().int(),
  generation: z.number().int(),
  whole: z.boolean().describe('true once all its tool results are stored'),
  finishReason: z.string().optional(),
  usage: usageSchema.optional(),
  startedAt: z.string(),
  finishedAt: z.string().optional(),
  parts: z.array(uiPartSchema).describe('what the step added to the answer, as UIMessage parts'),
  toolCalls: z.array(
    z.object({
      toolCallId: z.string(),
      toolName: z.string(),
      state: z.enum(['running', 'finished', 'failed']),
      startedAt: z.string(),
      finishedAt: z.string().optional(),
    }),
  ),
})
export const stepsSchema = z.object({ jobId: z.string(), steps: z.array(stepSchema) })
export type StepView = z.infer<typeof stepSchema>

export const eventSchema = z.object({
  id: z.string(),
  at: z.string(),
  kind: z.string(),
  actorId: z.string().optional(),
  data: z.unknown(),
})
export const eventPageSchema = z.object({
  jobId: z.string(),
  events: z.array(eventSchema),
  nextCursor: z.string().optional(),
})
export type EventPage = z.infer<typeof eventPageSchema>

/** The state of a context layer. */
export const layerStateSchema = z.object({
  state: z.unknown().describe('JSON; null while nothing was written'),
  version: z.number().int().describe('counts the writes; 0: none yet'),
})
export const layerWriteSchema = z.strictObject({
  state: z.json().describe('at most 262,144 bytes of JSON'),
  version: z.number().int().min(0).optional().describe('write only when the state has this version; 0: none yet'),
})
export const writtenLayerSchema = layerStateSchema.pick({ version: true })

/** Of the outbox: what was given up, and is there to be sent again. */
export const deadLetterIdSchema = z.string().regex(/^\d{1,18}$/)
export const deadLettersQuerySchema = z.strictObject({
  cursor: z
    .string()
    .regex(/^\d{1,18}$/, 'must be the nextCursor of an earlier page')
    .optional()
    .describe('older ones than those of the page that gave it'),
  limit: z.coerce.number().int().min(1).max(200).default(50),
})
const outboxKindSchema = z.enum(OUTBOX_KINDS)
export const deadLetterSchema = z.object({
  id: z.string(),
  jobId: z.string(),
  kind: outboxKindSchema,
  key: z.string().describe('the same for the same telling; of an event it ends with the id of the event'),
  attempts: z.number().int(),
  lastError: z.string().optional(),
  createdAt: z.string(),
  deadAt: z.string(),
})
export const deadLetterPageSchema = z.object({
  deadLetters: z.array(deadLetterSchema),
  nextCursor: z.string().optional(),
})
export type DeadLetterPage = z.infer<typeof deadLetterPageSchema>
export const resentDeadLetterSchema = deadLetterSchema.pick({ id: true, jobId: true, kind: true, key: true })

/** Numbers that cannot be read at the moment are null. */
const countSchema = z.number().int().nullable()
export const healthSchema = z.object({
  status: z.enum(['ok', 'degraded', 'down']).describe('degraded: Redis is away; down: Postgres is away'),
  subAgents: z.object({
    activeJobs: countSchema.describe('held by a worker'),
    pendingJobs: countSchema.describe('to be taken by a worker'),
    waitingJobs: countSchema.describe('holding nothing until something ends their wait'),
    totalJobs: countSchema.describe('of any state, until retention removes them'),
  }),
  queue: z.object({
    paused: z.boolean().nullable(),
    depth: countSchema.describe('deliveries that no worker has taken'),
    oldestAgeMs: countSchema.describe('how long the oldest pending job has been that'),
    workers: countSchema.describe('worker processes seen of late'),
  }),
})
export type Health = z.infer<typeof healthSchema>

export const readySchema = z.object({ status: z.literal('ready') })
export const liveSchema = z.object({ status: z.literal('live') })

export const problemSchema = z
  .looseObject({
    type: z.string(),
    title: z.string(),
    status: z.number().int(),
    detail: z.string(),
    code: z.string().describe('stable; what programs should look at'),
  })
  .describe('RFC 9457 problem details')
