// The OpenAPI document, made from the same schemas that read the requests.
import { messageReceiptSchema } from '@offshoot/shared/contracts/message'
import {
  agentJobPageSchema,
  agentJobViewSchema,
  agentTreeSchema,
  listInputSchema,
} from '@offshoot/shared/contracts/agent-job'
import { botSchema, botWriteSchema } from '@offshoot/shared/contracts/bot'
import { resultPageSchema } from '@offshoot/shared/contracts/read-result'
import { programSpawnInputSchema } from '@offshoot/shared/contracts/spawn'
import { z } from 'zod'
import { createDocument, type ZodOpenApiOperationObject, type ZodOpenApiResponsesObject } from 'zod-openapi'
import * as contracts from './contracts.ts'
import { answer, eventStream, json, ofBody, ofOne, refusal, unauthorized } from './openapi-parts.ts'

const jobPath = z.object({ jobId: z.string() })
const layerPath = jobPath.extend({ layerId: z.string() })
const convoPath = z.object({ convoId: z.string() })
const botPath = z.object({ group: botSchema.shape.group, handle: botSchema.shape.handle })
const spawnHeaders = z.object({
  'Idempotency-Key': z
    .string()
    .optional()
    .describe('the same key and body give the same job; 1 to 200 visible ASCII characters, unique to the caller'),
})
const streamHeaders = z.object({
  'Last-Event-ID': z.string().optional().describe('the id of the last event that was seen'),
})

const agents: Record<string, Record<string, ZodOpenApiOperationObject>> = {
  '/v1/agents': {
    post: {
      summary: 'Spawn an agent',
      tags: ['agents'],
      requestParams: { query: contracts.spawnQuerySchema, header: spawnHeaders },
      requestBody: { required: true, ...json(programSpawnInputSchema) },
      responses: {
        200: answer('sync: the outcome.', contracts.syncSpawnSchema),
        202: answer(
          'async: the accepted job. sync: the job as it stands, when the wait was over first.',
          z.union([contracts.asyncSpawnSchema, agentJobViewSchema]),
        ),
        ...ofBody(),
        402: refusal('The budget above is spent, or less than the one asked for; or a price is not known.'),
        403: refusal('The caller may not spawn as that user.'),
        404: refusal('The bot does not exist.'),
        409: refusal('The idempotency key was used for another request.'),
        422: refusal('Sub-agents may not be nested deeper.'),
        429: refusal('A limit on the number of jobs is reached.'),
      },
    },
    get: {
      summary: "The caller's jobs, newest first",
      tags: ['agents'],
      requestParams: { query: listInputSchema },
      responses: {
        200: answer('A page.', agentJobPageSchema),
        400: refusal('The query is not valid.'),
        ...unauthorized,
      },
    },
  },
  '/v1/agents/{jobId}': {
    get: {
      summary: 'How a job stands',
      tags: ['agents'],
      requestParams: { path: jobPath, query: contracts.checkQuerySchema },
      responses: { 200: answer('The job.', contracts.checkOutputSchema), ...ofOne('job') },
    },
  },
  '/v1/agents/{jobId}/tree': {
    get: {
      summary: 'A job and all its descendants, with the totals of each subtree',
      tags: ['agents'],
      requestParams: { path: jobPath },
      responses: { 200: answer('The tree.', agentTreeSchema), ...ofOne('job') },
    },
  },
  '/v1/agents/{jobId}/steps': {
    get: {
      summary: 'The journal of a job',
      tags: ['agents'],
      requestParams: { path: jobPath },
      responses: { 200: answer('The steps.', contracts.stepsSchema), ...ofOne('job') },
    },
  },
  '/v1/agents/{jobId}/results/{ref}': {
    get: {
      summary: 'A page of a result that is shown in part elsewhere',
      description:
        "`ref` is the one of a truncated tool result of this job, or the job's own id for its own result. Counts are in characters.",
      tags: ['agents'],
      requestParams: { path: jobPath.extend({ ref: z.string() }), query: contracts.resultQuerySchema },
      responses: {
        200: answer('A page.', resultPageSchema),
        400: refusal('The query is not valid.'),
        ...ofOne('job or result'),
      },
    },
  },
  '/v1/agents/{jobId}/events': {
    get: {
      summary: 'The history of a job, oldest first',
      tags: ['agents'],
      requestParams: { path: jobPath, query: contracts.eventsQuerySchema },
      responses: { 200: answer('A page.', contracts.eventPageSchema), ...ofOne('job') },
    },
  },
  '/v1/agents/{jobId}/stream': {
    get: {
      summary: 'Follow a job live',
      tags: ['agents'],
      requestParams: { path: jobPath, query: contracts.streamQuerySchema, header: streamHeaders },
      responses: { 200: eventStream, ...ofOne('job') },
    },
  },
  '/v1/agents/{jobId}/abort': {
    post: {
      summary: 'Abort a job and everything below it',
      tags: ['agents'],
      requestParams: { path: jobPath },
      requestBody: json(contracts.abortBodySchema),
      responses: {
        200: answer('What is true after the call.', contracts.abortOutputSchema),
        ...ofBody(),
        ...ofOne('job'),
      },
    },
  },
  '/v1/agents/{jobId}/messages': {
    post: {
      summary: 'Say something to a running job, which it reads before its next model call',
      tags: ['agents'],
      requestParams: { path: jobPath },
      requestBody: { required: true, ...json(contracts.messageBodySchema) },
      responses: {
        200: answer('The receipt: accepted, read at a step, or the job ended first.', messageReceiptSchema),
        ...ofBody(),
        ...ofOne('job'),
      },
    },
  },
  '/v1/agents/{jobId}/layers/{layerId}': {
    get: {
      summary: 'The state of a context layer of a job',
      description: "The state of a chat turn is its convo's.",
      tags: ['agents'],
      requestParams: { path: layerPath },
      responses: { 200: answer('The state.', contracts.layerStateSchema), ...ofOne('job or layer') },
    },
    put: {
      summary: 'Write the state of a context layer: running sub-agents of the job that have the layer hear of it',
      tags: ['agents'],
      requestParams: { path: layerPath },
      requestBody: { required: true, ...json(contracts.layerWriteSchema) },
      responses: {
        200: answer('It is written; its new version.', contracts.writtenLayerSchema),
        ...ofBody(),
        ...ofOne('job or layer'),
        409: refusal('The state has another version, which `version` names.'),
      },
    },
  },
  '/v1/agents/{jobId}/retry': {
    post: {
      summary: 'Let a failed or aborted job go on from its journal',
      tags: ['agents'],
      requestParams: { path: jobPath },
      requestBody: json(contracts.retryBodySchema),
      responses: {
        202: answer('The job, as a new generation.', agentJobViewSchema),
        ...ofBody(),
        ...ofOne('job'),
        402: refusal('The budget is spent, more than those above it leave, or in money without a known price.'),
        409: refusal('The convo has a live turn.'),
        429: refusal('A limit on the number of jobs is reached.'),
      },
    },
  },
}

const convos: Record<string, Record<string, ZodOpenApiOperationObject>> = {
  '/v1/convos': {
    post: {
      summary: 'Begin a convo with a bot',
      tags: ['convos'],
      requestBody: { required: true, ...json(contracts.createConvoSchema) },
      responses: {
        201: answer('The convo.', contracts.convoSchema),
        ...ofBody(),
        404: refusal('The bot does not exist.'),
      },
    },
  },
  '/v1/convos/{convoId}/messages': {
    get: {
      summary: 'The messages of a convo, oldest first, beginning with the newest page',
      tags: ['convos'],
      requestParams: { path: convoPath, query: contracts.messagesQuerySchema },
      responses: { 200: answer('A page.', contracts.messagePageSchema), ...ofOne('convo') },
    },
    post: {
      summary: 'Send a message: the bot answers as a live stream',
      tags: ['convos'],
      requestParams: { path: convoPath },
      requestBody: { required: true, ...json(contracts.chatBodySchema) },
      responses: {
        200: eventStream,
        ...ofBody(),
        ...ofOne('convo'),
        409: refusal('The convo has a live turn.'),
        429: refusal('A limit on the number of jobs is reached.'),
      },
    },
  },
  '/v1/convos/{convoId}/stream': {
    get: {
      summary: 'Follow the live turn of a convo',
      tags: ['convos'],
      requestParams: { path: convoPath, query: contracts.streamQuerySchema, header: streamHeaders },
      responses: { 200: eventStream, 204: { description: 'Nothing is active.' }, ...ofOne('convo') },
    },
  },
}

const bots: Record<string, Record<string, ZodOpenApiOperationObject>> = {
  '/v1/bots': {
    get: {
      summary: 'The bots that the caller may use',
      tags: ['bots'],
      responses: { 200: answer('The bots.', contracts.botListSchema), ...unauthorized },
    },
  },
  '/v1/bots/{group}/{handle}': {
    get: {
      summary: 'One bot',
      tags: ['bots'],
      requestParams: { path: botPath },
      responses: { 200: answer('The bot.', contracts.botViewSchema), ...ofOne('bot') },
    },
    put: {
      summary: "Write a bot: an admin's is for everybody, a user's for that user",
      tags: ['bots'],
      requestParams: { path: botPath },
      requestBody: { required: true, ...json(botWriteSchema) },
      responses: {
        200: answer('It was there before.', contracts.botViewSchema),
        201: answer('It is new.', contracts.botViewSchema),
        ...ofBody(),
        403: refusal("It is not the caller's to change."),
        ...ofOne('bot'),
      },
    },
  },
}

const forAdmins: ZodOpenApiResponsesObject = { ...unauthorized, 403: refusal('The caller is no admin.') }
const operations: Record<string, Record<string, ZodOpenApiOperationObject>> = {
  '/v1/dead-letters': {
    get: {
      summary: 'What could not be told to others and was given up, newest first',
      tags: ['operations'],
      requestParams: { query: contracts.deadLettersQuerySchema },
      responses: {
        200: answer('A page.', contracts.deadLetterPageSchema),
        400: refusal('The query is not valid.'),
        ...forAdmins,
      },
    },
  },
  '/v1/dead-letters/{id}/resend': {
    post: {
      summary: 'Send a dead letter again, at once',
      tags: ['operations'],
      requestParams: { path: z.object({ id: contracts.deadLetterIdSchema }) },
      responses: {
        202: answer('It is on its way again, and no dead letter any more.', contracts.resentDeadLetterSchema),
        400: refusal('It was told already, or was not given up.'),
        404: refusal('There is no such entry.'),
        ...forAdmins,
      },
    },
  },
  '/api/health': {
    get: {
      summary: 'How much there is to do',
      tags: ['operations'],
      security: [],
      responses: {
        200: answer('Numbers; null where one cannot be read.', contracts.healthSchema),
        503: answer('Postgres is away.', contracts.healthSchema),
      },
    },
  },
  '/metrics': {
    get: {
      summary: 'Numbers for Prometheus',
      tags: ['operations'],
      security: [],
      responses: {
        200: { description: "Prometheus's text format.", content: { 'text/plain': { schema: z.string() } } },
      },
    },
  },
  '/livez': {
    get: {
      summary: 'The process lives',
      tags: ['operations'],
      security: [],
      responses: { 200: answer('It does.', contracts.liveSchema) },
    },
  },
  '/readyz': {
    get: {
      summary: 'The process can serve',
      tags: ['operations'],
      security: [],
      responses: { 200: answer('It can.', contracts.readySchema), 503: refusal('It cannot: see checks.') },
    },
  },
}

export function openApiDocument() {
  return createDocument({
    openapi: '3.1.0',
    info: {
      title: 'Offshoot',
      version: '1',
      description:
        'Durable sub-agents for the AI SDK. Errors are RFC 9457 problem details with a stable `code`; fields that are not known are refused.',
    },
    security: [{ apiKey: [] }],
    paths: { ...agents, ...convos, ...bots, ...operations },
    components: {
      securitySchemes: {
        apiKey: {
          type: 'http',
          scheme: 'bearer',
          description: 'An API key. A service key may add X-On-Behalf-Of: <userId>.',
        },
      },
      schemas: {
        SpawnInput: programSpawnInputSchema,
        AgentJob: agentJobViewSchema,
        UIMessage: contracts.uiMessageSchema,
        Problem: contracts.problemSchema,
        BotWrite: botWriteSchema,
      },
    },
  })
}
