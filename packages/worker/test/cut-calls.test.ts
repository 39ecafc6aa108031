// What a model call costs that is cut: estimated, marked, and counted with the rest.
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { checkAgent } from '@offshoot/shared/operations/check-agent'
import { listAgents, readTree } from '@offshoot/shared/operations/list-agents'
import { abort, childrenOf, endOf, readJob, runRoot, spawnOf, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { callsTool, type RawModel, type RawScript, says, startRawModel, staysSilent } from '@offshoot/testing/raw-model'
import { openTestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { startWorker } from '../src/worker.ts'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const FIRST_CHUNK_MS = '400'

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    environment: { LOG_LEVEL: 'silent', MODEL_FIRST_CHUNK_MS: FIRST_CHUNK_MS, MODEL_CHUNK_MS: '500' },
  })
  // Its prompt is half of what the calls here send.
  await stage.putBot('bot', { systemPrompt: 'x'.repeat(4_000), toolNames: ['spawnAgent', 'checkAgent'] })
  await stage.putBot('bare', { systemPrompt: 'x'.repeat(4_000), toolNames: [] })
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const READER = { userId: 'alice', admin: false }
const LOOKED = callsTool('checkAgent', { jobId: 'nothing' }, 'call_check')
/** 100 tokens, and then silence. */
const TEXT = 'four'.repeat(100)
const lingers: RawScript = async (reply) => {
  reply.text(TEXT)
  await reply.closed
}
const estimatesOf = async (jobId: string) => {
  const { estimatedInputTokens, estimatedOutputTokens } = await readJob(stage, jobId)
  return [estimatedInputTokens, estimatedOutputTokens].map((tokens) => (tokens === null ? null : Number(tokens)))
}

test('COST-10: of an aborted call the request and what was said are counted, marked as an estimate, beside what is known', async () => {
  raw.answer('tell me', LOOKED, lingers)
  const { id } = await spawnRoot(stage, 'bot', 'tell me')
  await untilLiveText(stage, id, TEXT)
  expect(await estimatesOf(id)).toEqual([null, null])
  await abort(stage, id)
  const [input = 0, output] = await estimatesOf(id)
  expect(output).toBe(100)
  // The prompt of 4,000 characters, and the tools' descriptions.
  expect(input).toBeGreaterThan(1_000)
  expect(input).toBeLessThan(2_500)
  expect(await readJob(stage, id)).toMatchObject({ inputTokens: 10n, outputTokens: 5n, totalTokens: 15n, steps: 1 })
  const usage = {
    inputTokens: 10 + Number(input),
    outputTokens: 105,
    reasoningTokens: 0,
    totalTokens: 15 + Number(input) + 100,
    estimatedTokens: Number(input) + 100,
  }
  const check = await checkAgent(stage.runtime, READER, { jobId: id, includePartial: false, waitSeconds: 0 })
  expect(check).toMatchObject({ state: 'aborted', usage })
  const list = await listAgents(stage.runtime, READER, { rootJobId: id, limit: 10 })
  expect(list.jobs).toMatchObject([{ usage }])
  const tree = await readTree(stage.runtime, READER, id)
  expect(tree?.jobs).toMatchObject([{ usage, subtree: { jobs: 1, usage } }])
  const message = await stage.runtime.database.aiMessage.findFirstOrThrow({ where: { jobId: id, role: 'assistant' } })
  expect(message.usage).toEqual(usage)
})

/** What a model does once its text has arrived. */
type Cut = (reply: Parameters<RawScript>[0]) => void

test.each<[string, Cut, string, number]>([
  ['a silence in the middle', () => undefined, 'timeout_chunk', 100],
  ['a reset in the middle', (reply) => reply.reset(), 'upstream_disconnect', 100],
  [
    'an end that is none, in the middle of a tool call',
    (reply) => {
      const item = { type: 'function_call', id: 'fc_1', call_id: 'call_1', name: 'checkAgent', arguments: '' }
      reply.event({ type: 'response.output_item.added', output_index: 1, item })
      const delta = 'half'.repeat(20)
      reply.event({ type: 'response.function_call_arguments.delta', item_id: 'fc_1', output_index: 1, delta })
      reply.end()
    },
    'upstream_disconnect',
    120,
  ],
])('COST-10: %s is counted like that', async (what, cut, reason, tokens) => {
  const arrived = Promise.withResolvers<void>()
  raw.answer(what, async (reply) => {
    reply.text(TEXT)
    await arrived.promise
    cut(reply)
  })
  const { id } = await spawnRoot(stage, 'bot', what)
  await untilLiveText(stage, id, TEXT)
  arrived.resolve()
  const job = await endOf(stage, id)
  expect(job).toMatchObject({ state: 'failed', reason, inputTokens: null, totalTokens: null })
  const [input, output] = await estimatesOf(job.id)
  expect(output).toBe(tokens)
  expect(input).toBeGreaterThan(1_000)
})

test('COST-10: a call that was aborted before any answer has cost its request', async () => {
  raw.answer('say nothing', staysSilent)
  const { id } = await spawnRoot(stage, 'bare', 'say nothing')
  await waitUntil(() => raw.requests('say nothing').length === 1)
  await abort(stage, id)
  const [input, output] = await estimatesOf(id)
  expect(output).toBe(0)
  expect(input).toBeGreaterThan(1_000)
  expect(input).toBeLessThan(1_100)
})

test('COST-10: a try that was given up counts with the one that followed it, at the next place where the claim goes', async () => {
  raw.answer('second try', staysSilent, callsTool('spawnAgent', spawnOf('bare', 'a child')), says('done'))
  const spoken = Promise.withResolvers<void>()
  raw.answer('a child', async (reply) => {
    await spoken.promise
    reply.text('child')
    reply.finish()
  })
  const { id } = await spawnRoot(stage, 'bot', 'second try')
  await waitUntil(async () => (await readJob(stage, id)).waitingOn === 'children')
  const [input, output] = await estimatesOf(id)
  expect(output).toBe(0)
  expect(input).toBeGreaterThan(1_000)
  spoken.resolve()
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'done', inputTokens: 20n })
  expect(await estimatesOf(id)).toEqual([input, output])
  const [child] = await childrenOf(stage, id)
  // The child was slow for as long as a first output may take, and its own tries count for it alone.
  expect(child).toMatchObject({ state: 'completed' })
})

describe('STATE-18: known, unknown and zero stay told apart', () => {
  test.each<[string, RawScript, object]>([
    ['refused', (reply) => reply.status(401, { message: 'no' }), { state: 'failed', reason: 'model_auth' }],
    ['broken', (reply) => reply.reset(), { state: 'failed', reason: 'upstream_disconnect' }],
    [
      'zero',
      (reply) => {
        reply.text('free')
        reply.finish({ usage: { input: 0, output: 0 } })
      },
      { state: 'completed', inputTokens: 0n, totalTokens: 0n },
    ],
  ])('%s: nothing is estimated', async (what, script, expected) => {
    raw.answer(`be ${what}`, script)
    const job = await runRoot(stage, 'bot', `be ${what}`)
    expect(job).toMatchObject({ ...expected, estimatedInputTokens: null, estimatedOutputTokens: null })
    const { usage } = await checkAgent(stage.runtime, READER, { jobId: job.id, includePartial: false, waitSeconds: 0 })
    expect(usage).not.toHaveProperty('estimatedTokens')
  })

  test('what the provider says of a call whose end is no answer is believed', async () => {
    raw.answer('fail late', (reply) => {
      reply.text('almost')
      const usage = { input_tokens: 70, output_tokens: 7 }
      reply.event({ type: 'response.incomplete', response: { incomplete_details: { reason: 'a whim' }, usage } })
      reply.end()
    })
    const job = await runRoot(stage, 'bot', 'fail late')
    expect(job).toMatchObject({ state: 'failed', totalTokens: null })
    expect(await estimatesOf(job.id)).toEqual([70, 7])
  })
})

test('COST-10: a step that is handed over in its middle is counted, and what the next worker makes of it, too', async () => {
  const quiet = await openTestStage({ environment: { OPENAI_BASE_URL: raw.baseUrl, WORKER_DRAIN_MS: '100' } })
  try {
    await quiet.putBot('bare', { systemPrompt: 'x'.repeat(4_000), toolNames: [] })
    raw.answer('hand me over', lingers, says('here'))
    const first = await startWorker(quiet.runtime)
    const { id } = await spawnRoot(quiet, 'bare', 'hand me over')
    await untilLiveText(quiet, id, TEXT)
    await first.drain()
    const between = await readJob(quiet, id)
    expect(between).toMatchObject({ state: 'pending', estimatedOutputTokens: 100n, inputTokens: null })
    const second = await startWorker(quiet.runtime)
    expect(await endOf(quiet, id)).toMatchObject({
      state: 'completed',
      inputTokens: 10n,
      estimatedInputTokens: between.estimatedInputTokens,
      estimatedOutputTokens: 100n,
    })
    await second.drain()
  } finally {
    await quiet.close()
  }
})
