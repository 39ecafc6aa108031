// Tools of the product's own: what they see, how they end, and what is kept of them.
import { jsonSchema, tool, type Tool } from 'ai'
import { MockLanguageModelV4 } from 'ai/test'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { decodeStored } from '@offshoot/shared/db/stored-value'
import { getSpawnContext } from '@offshoot/shared/spawn-context'
import { getToolCall } from '@offshoot/shared/tool-call'
import type { AiTool } from '@offshoot/shared/tools/registry'
import { answerOf, runRoot } from '@offshoot/testing/agents'
import { callsTool, type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const anything = jsonSchema<Record<string, unknown>>({ type: 'object' })

function custom(id: string, execute: NonNullable<Tool['execute']>, more: Partial<Tool> = {}): AiTool {
  // `more` and `execute` together are a tool; the union type only spells out which go together.
  return { id, group: 'test', userSelect: true, tool: { inputSchema: anything, execute, ...more } as Tool }
}

const tools: AiTool[] = [
  custom('add', ({ a, b }) => Number(a) + Number(b)),
  custom('count', async function* ({ to }) {
    for (let at = 1; at <= Number(to); at += 1) yield `counted to ${at}`
  }),
  custom('fail', async () => {
    throw new Error('the disk is full')
  }),
  custom('abortItself', async () => {
    throw new DOMException('I gave up', 'AbortError')
  }),
  custom('hang', () => new Promise(() => undefined)),
  custom('hangHalfway', async function* () {
    yield 'begun'
    await new Promise(() => undefined)
  }),
  custom('give', ({ what }) => ({ null: null, false: false, zero: 0, empty: '', nothing: undefined })[String(what)]),
  custom('whoAmI', () => getSpawnContext()),
  custom('whichCall', () => getToolCall()),
  custom('shorten', () => ({ long: 'x'.repeat(1_000) }), {
    toModelOutput: () => ({ type: 'text', value: 'a long thing' }),
  }),
  {
    id: 'askHuman',
    group: 'test',
    userSelect: true,
    tool: tool({ inputSchema: anything }),
  },
]

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    environment: { TOOL_TIMEOUT_MS: '400' },
    extensions: {
      tools,
      providers: {
        parrot: ({ userId }) => ({
          specificationVersion: 'v4',
          languageModel: (modelId) => parrot(`I am ${modelId} for ${userId}`),
          embeddingModel: () => notHere('embedding'),
          imageModel: () => notHere('image'),
        }),
      },
    },
  })
  await stage.putBot('bot', { toolNames: tools.map(({ id }) => id) })
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

function notHere(kind: string): never {
  throw new Error(`the parrot has no ${kind} model`)
}

function parrot(text: string): MockLanguageModelV4 {
  return new MockLanguageModelV4({
    doStream: async () => ({
      stream: ReadableStream.from([
        { type: 'text-start' as const, id: 't' },
        { type: 'text-delta' as const, id: 't', delta: text },
        { type: 'text-end' as const, id: 't' },
        {
          type: 'finish' as const,
          usage: {
            inputTokens: { total: undefined, noCache: undefined, cacheRead: undefined, cacheWrite: undefined },
            outputTokens: { total: undefined, text: undefined, reasoning: undefined },
          },
          finishReason: { unified: 'stop' as const, raw: undefined },
        },
      ]),
    }),
  })
}

/** Runs a job whose model calls one tool and then says `done`; answers the job and what the model read of the call. */
async function runCall(message: string, name: string, input: unknown = {}) {
  raw.answer(message, callsTool(name, input), says('done'))
  const job = await runRoot(stage, 'bot', message)
  const { input: items } = raw.requests(message).at(-1)?.body ?? {}
  const list: { type?: string; output?: string }[] = Array.isArray(items) ? items : []
  const [call] = await stage.runtime.database.agentToolCall.findMany({ where: { jobId: job.id } })
  return { job, read: list.find((item) => item.type === 'function_call_output')?.output, call }
}

test('a custom tool runs, its call is stored, and the model reads its result', async () => {
  const { job, read, call } = await runCall('add up', 'add', { a: 2, b: 3 })
  expect(job).toMatchObject({ state: 'completed', result: 'done', steps: 2, inputTokens: 20n, outputTokens: 10n })
  expect(read).toBe('5')
  expect(call).toMatchObject({ stepIndex: 0, toolCallId: 'call_add', toolName: 'add', output: 5, error: null })
  expect(await answerOf(stage, job.id)).toContainEqual({
    type: 'tool-add',
    toolCallId: 'call_add',
    state: 'output-available',
    input: { a: 2, b: 3 },
    output: 5,
    callProviderMetadata: expect.anything(),
  })
})

test('a streaming tool shows each value to viewers and gives the model the last one', async () => {
  const { job, read, call } = await runCall('count up', 'count', { to: 3 })
  expect(read).toBe('counted to 3')
  expect(call?.output).toBe('counted to 3')
  const frames = (await stage.runtime.liveStreams.read(job.id, 0)).flatMap(({ chunks }) => chunks)
  const outputs = frames.flatMap((chunk) =>
    chunk.type === 'tool-output-available' ? [[chunk.output, chunk.preliminary === true]] : [],
  )
  expect(outputs).toEqual([
    ['counted to 1', true],
    ['counted to 2', true],
    ['counted to 3', true],
    ['counted to 3', false],
  ])
})

test('a tool that does not stream shows one result, and no preliminary one', async () => {
  const { job } = await runCall('add once', 'add', { a: 1, b: 1 })
  const frames = (await stage.runtime.liveStreams.read(job.id, 0)).flatMap(({ chunks }) => chunks)
  expect(frames.filter((chunk) => chunk.type === 'tool-output-available')).toHaveLength(1)
})

test('a tool that throws is an error result, and the job goes on', async () => {
  const { job, read, call } = await runCall('fail please', 'fail')
  expect(job).toMatchObject({ state: 'completed', result: 'done' })
  expect(read).toContain('the disk is full')
  expect(decodeStored(call?.error)).toMatchObject({ name: 'Error', message: 'the disk is full' })
  expect(await answerOf(stage, job.id)).toContainEqual(
    expect.objectContaining({
      type: 'tool-fail',
      state: 'output-error',
      errorText: expect.stringContaining('the disk is full'),
    }),
  )
})

test('STATE-2: an AbortError of a tool with nobody aborting is a tool error', async () => {
  const { job, read } = await runCall('give up', 'abortItself')
  expect(job).toMatchObject({ state: 'completed', result: 'done' })
  expect(read).toContain('I gave up')
})

test.each(['hang', 'hangHalfway'])(
  'STUCK-10: %s, which never settles, ends by its own timeout as a tool error',
  async (name) => {
    const { job, read } = await runCall(`${name} please`, name)
    expect(job).toMatchObject({ state: 'completed', result: 'done' })
    expect(read).toMatch(/timeout|timed out/i)
  },
)

test.each([
  ['null', null],
  ['false', false],
  ['zero', 0],
  ['empty', ''],
])('STATE-24: a result that is %s is kept as it is', async (what, value) => {
  const { job, call } = await runCall(`give ${what}`, 'give', { what })
  expect(decodeStored(call?.output)).toBe(value)
  expect((await answerOf(stage, job.id)).find((part) => part.type === 'tool-give')).toMatchObject({ output: value })
})

test('a tool without a result gives the model an empty one, and the job goes on', async () => {
  const { job, call } = await runCall('give nothing', 'give', { what: 'nothing' })
  expect(job.state).toBe('completed')
  expect(call?.finishedAt).not.toBeNull()
})

test('a tool knows for whom it runs', async () => {
  const { job, call } = await runCall('who are you', 'whoAmI')
  expect(decodeStored(call?.output)).toMatchObject({
    userId: 'alice',
    parentConvoId: job.convoId,
    spawnDepth: 1,
    parentJobId: job.id,
  })
})

test('a tool knows which call it runs for', async () => {
  const { job, call } = await runCall('which call', 'whichCall')
  expect(decodeStored(call?.output)).toEqual({
    jobId: job.id,
    step: 0,
    toolCallId: 'call_whichCall',
    idempotencyKey: expect.stringMatching(/^[0-9a-f]{64}$/),
  })
})

test('toModelOutput decides what the model reads; the whole output is stored', async () => {
  const { read, call } = await runCall('shorten it', 'shorten')
  expect(read).toBe('a long thing')
  expect(call?.output).toEqual({ long: 'x'.repeat(1_000) })
})

test('a tool of another kind without execute gets an error result', async () => {
  const { job, read } = await runCall('ask somebody', 'askHuman')
  expect(job).toMatchObject({ state: 'completed', result: 'done' })
  expect(read).toContain('The tool askHuman cannot be run here.')
  expect((await answerOf(stage, job.id)).find((part) => part.type === 'tool-askHuman')).toMatchObject({
    state: 'output-error',
    errorText: 'The tool askHuman cannot be run here.',
  })
})

test('STATE-20: invalid input and a tool that does not exist get error results, valid calls beside them keep theirs', async () => {
  raw.answer(
    'call badly',
    (reply) => {
      reply.call('add', { a: 1, b: 2 }, 'call_good')
      reply.call('constructor', {}, 'call_unknown')
      reply.finish()
    },
    says('done'),
  )
  const job = await runRoot(stage, 'bot', 'call badly')
  expect(job).toMatchObject({ state: 'completed', result: 'done' })
  const parts = await answerOf(stage, job.id)
  expect(parts).toContainEqual(
    expect.objectContaining({ toolCallId: 'call_good', state: 'output-available', output: 3 }),
  )
  expect(parts).toContainEqual(expect.objectContaining({ toolCallId: 'call_unknown', state: 'output-error' }))
})

describe('what a bot names', () => {
  test('an unknown tool fails the job before any model call, and the error names it', async () => {
    await stage.putBot('lost', { toolNames: ['add', 'teleport'] })
    const job = await runRoot(stage, 'lost', 'beam me up')
    expect(job).toMatchObject({ state: 'failed', reason: 'invalid_request', result: null })
    expect(job.error).toContain('Unknown tools: teleport.')
    expect(job.error).toContain('OFFSHOOT_CONFIG')
    expect(raw.requests('beam me up')).toEqual([])
  })

  test('a provider of the config module runs its models, and knows for whom; unknown usage stays unknown', async () => {
    await stage.putBot('polly', { integration: 'parrot', modelName: 'grey', toolNames: [] })
    expect(await runRoot(stage, 'polly', 'hello')).toMatchObject({
      state: 'completed',
      result: 'I am grey for alice',
      totalTokens: null,
    })
  })

  test('modelOverride reaches a provider of the config module', async () => {
    const job = await runRoot(stage, 'bot', 'hello', { overrides: { modelOverride: 'parrot:ara' } })
    expect(job.result).toBe('I am ara for alice')
  })
})
