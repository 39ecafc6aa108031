// How a job ends when its model does not answer as it should: reason and state are right, and what was said is kept.
import { customProvider, jsonSchema, tool } from 'ai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { AgentJob } from '@offshoot/shared/db/agent-jobs'
import { checkAgent } from '@offshoot/shared/operations/check-agent'
import { answerOf, endOf, readJob, runRoot, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import {
  callsTool,
  type RawModel,
  type RawReply,
  type RawScript,
  says,
  startRawModel,
  staysSilent,
  ticking,
} from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { oddModels } from './odd-models.ts'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const FIRST_CHUNK_MS = 400
const CHUNK_MS = 1_000
const STEP_MS = 8_000

let toolRuns = 0
let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    environment: {
      MODEL_FIRST_CHUNK_MS: String(FIRST_CHUNK_MS),
      MODEL_CHUNK_MS: String(CHUNK_MS),
      MODEL_STEP_MS: String(STEP_MS),
    },
    extensions: {
      providers: { odd: () => customProvider({ languageModels: oddModels }) },
      tools: [
        {
          id: 'noteRun',
          group: 'test',
          userSelect: true,
          tool: tool({ inputSchema: jsonSchema<object>({ type: 'object' }), execute: () => (toolRuns += 1) }),
        },
      ],
    },
  })
  await stage.putBot('bot')
  for (const modelName of Object.keys(oddModels))
    await stage.putBot(modelName, { integration: 'odd', modelName, toolNames: ['noteRun'] })
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

/** A step with a text and a tool call, as the first of two. */
const firstStep: RawScript = (reply) => {
  reply.text('Let me look.')
  reply.call('checkAgent', { jobId: 'nothing' }, 'call_check')
  reply.finish()
}

const textsOf = async (jobId: string) =>
  (await answerOf(stage, jobId)).flatMap((part) => (part.type === 'text' ? [part.text] : []))

type Cut = (reply: RawReply) => void | Promise<void>

/** Runs a job whose model says half an answer, and does `cut` to it once viewers have seen that. */
async function runCut(
  message: string,
  cut: Cut,
  ...before: RawScript[]
): Promise<{ job: AgentJob; /** From the cut to the end. */ afterMs: number }> {
  const seen = Promise.withResolvers<void>()
  raw.answer(message, ...before, async (reply) => {
    reply.text('Half an ans')
    await seen.promise
    await cut(reply)
  })
  const { id } = await spawnRoot(stage, 'bot', message)
  await untilLiveText(stage, id, 'Half an ans')
  const cutAt = performance.now()
  seen.resolve()
  return { job: await endOf(stage, id), afterMs: performance.now() - cutAt }
}

const errorEvent = (code: string) => ({
  type: 'error',
  sequence_number: 9,
  error: { type: 'server_error', code, message: `the mock says ${code}` },
})

describe('what ends in the middle', () => {
  const cases: [name: string, cut: Cut, reason: string][] = [
    ['STATE-4: finish reason length', (reply) => reply.finish({ incomplete: 'max_output_tokens' }), 'output_limit'],
    [
      'STATE-4: finish reason content-filter',
      (reply) => reply.finish({ incomplete: 'content_filter' }),
      'content_filter',
    ],
    [
      'STATE-5: an error event inside a 200',
      (reply) => {
        reply.event(errorEvent('server_error'))
        reply.end()
      },
      'model_unavailable',
    ],
    [
      'STATE-5: an error event that tells of a rate limit',
      (reply) => {
        reply.event(errorEvent('rate_limit_exceeded'))
        reply.end()
      },
      'model_rate_limited',
    ],
    ['STATE-4: a body that ends cleanly without a finish', (reply) => reply.end(), 'upstream_disconnect'],
    ['LOSS-2: a TCP reset', (reply) => reply.reset(), 'upstream_disconnect'],
    ['STATE-3: silence', () => undefined, 'timeout_chunk'],
  ]
  test.each(cases)(
    '%s fails the job with its reason within 2 s and keeps the partial text',
    async (name, cut, reason) => {
      const { job, afterMs } = await runCut(name, cut, firstStep)
      expect(job).toMatchObject({ state: 'failed', reason, result: 'Half an ans', partial: true, attempt: 1 })
      expect(afterMs).toBeLessThan(2_000)
      expect(raw.requests(name)).toHaveLength(2)
      expect(await textsOf(job.id)).toEqual(['Let me look.', 'Half an ans'])
      expect(job.error).not.toContain('the mock says')
    },
  )

  test.each(Object.keys(oddModels))(
    'STATE-4: finish reason %s does not complete a job: it fails with its reason, its partial text and one call',
    async (handle) => {
      const job = await runRoot(stage, handle, 'end oddly')
      expect(job).toMatchObject({
        state: 'failed',
        reason: 'upstream_disconnect',
        result: 'Half an ans',
        partial: true,
      })
      expect(job.errorDetail).toMatchObject({ message: expect.stringContaining(`raw ${handle.split('-')[0]}`) })
      expect(await textsOf(job.id)).toEqual(['Half an ans'])
      expect(oddModels[handle]?.doStreamCalls).toHaveLength(1)
      // A call of an output that is not stored is not run.
      expect(toolRuns).toBe(0)
    },
  )

  test('LOSS-2: the cause of a reset is kept for operators', async () => {
    const { job } = await runCut('reset me', (reply) => reply.reset())
    expect(job).toMatchObject({
      reason: 'upstream_disconnect',
      errorDetail: { code: expect.stringMatching(/ECONNRESET|UND_ERR_SOCKET/) },
    })
  })

  test('STATE-5: an error event ends the job although the connection stays open; its code and status are kept', async () => {
    const { job, afterMs } = await runCut('tell me why', (reply) => reply.event(errorEvent('server_error')))
    expect(afterMs).toBeLessThan(2_000)
    expect(job).toMatchObject({ reason: 'model_unavailable', errorDetail: { code: 'server_error', status: 500 } })
  })

  test('STUCK-11: our side closes the connection of a model that fell silent', async () => {
    await runCut('say no more', () => undefined)
    expect(await waitUntil(() => raw.requests('say no more')[0]?.closedByPeerAt, { within: 2_000 })).toBeDefined()
  })

  test('STUCK-11: comments and events without output do not count as progress', async () => {
    let sent = 0
    const { job, afterMs } = await runCut('keep me waiting', async (reply) => {
      const timer = setInterval(() => {
        reply.comment('keep-alive')
        reply.event({ type: 'response.in_progress', response: { id: 'r', created_at: 1, model: 'raw' } })
        sent += 1
      }, CHUNK_MS / 10)
      await reply.closed
      clearInterval(timer)
    })
    expect(job).toMatchObject({ state: 'failed', reason: 'timeout_chunk', result: 'Half an ans', partial: true })
    expect(sent).toBeGreaterThan(3)
    // A step's own limit would end it, too, but much later.
    expect(afterMs).toBeLessThan(STEP_MS / 2)
  })

  test.each([
    ['max_output_tokens', 'output_limit', 'The call was not run: the model reached its output limit while writing it.'],
    ['content_filter', 'content_filter', 'The call was not run: the provider filtered the output.'],
  ] as const)(
    'STATE-23: a spawn in a step that was cut by %s is closed and not run',
    async (incomplete, reason, errorText) => {
      const message = `cut by ${incomplete}`
      raw.answer(message, (reply) => {
        reply.text('I will ')
        reply.call('spawnAgent', { bot: { botGroup: 'forge', botHandle: 'bot' }, message: 'x' }, 'call_1')
        reply.finish({ incomplete })
      })
      const job = await runRoot(stage, 'bot', message)
      expect(job).toMatchObject({ state: 'failed', reason, result: 'I will ', partial: true })
      expect(await stage.runtime.database.agentJob.count({ where: { parentJobId: job.id } })).toBe(0)
      expect((await answerOf(stage, job.id)).at(-1)).toMatchObject({
        type: 'tool-spawnAgent',
        state: 'output-error',
        errorText,
      })
    },
  )
})

describe('what comes to nothing', () => {
  test('STATE-21: an empty text is its own outcome, never filled from an earlier step', async () => {
    raw.answer('say nothing', firstStep, (reply) => reply.finish())
    expect(await runRoot(stage, 'bot', 'say nothing')).toMatchObject({
      state: 'failed',
      reason: 'empty_output',
      result: null,
    })
  })

  test('STATE-4: a 200 with an empty body does not complete a job', async () => {
    raw.answer('empty body', (reply) => reply.end())
    expect(await runRoot(stage, 'bot', 'empty body')).toMatchObject({ state: 'failed', reason: 'upstream_disconnect' })
  })

  test('COST-5: a 401 is model_auth after one call', async () => {
    raw.answer('no key', (reply) => reply.status(401, { message: 'bad key sk-123' }))
    const job = await runRoot(stage, 'bot', 'no key')
    expect(job).toMatchObject({
      state: 'failed',
      reason: 'model_auth',
      result: null,
      errorDetail: { status: 401 },
    })
    expect(job.error).not.toContain('sk-123')
    expect(raw.requests('no key')).toHaveLength(1)
  })

  test('COST-5: a 400 for a prompt that is too long is context_overflow after one call', async () => {
    const error = { code: 'context_length_exceeded', message: 'Your input exceeds the context window of this model.' }
    raw.answer('too long', (reply) => reply.status(400, error))
    expect(await runRoot(stage, 'bot', 'too long')).toMatchObject({ state: 'failed', reason: 'context_overflow' })
    expect(raw.requests('too long')).toHaveLength(1)
  })

  test('LOSS-4: a step that fails after an earlier one keeps what the earlier one had said, once', async () => {
    raw.answer('fail late', firstStep, (reply) => reply.status(401, { message: 'expired' }))
    const job = await runRoot(stage, 'bot', 'fail late')
    expect(job).toMatchObject({
      state: 'failed',
      reason: 'model_auth',
      result: 'Let me look.',
      partial: true,
      steps: 1,
    })
    expect(await textsOf(job.id)).toEqual(['Let me look.'])
  })
})

describe('what is tried again', () => {
  test('LOSS-4: a 429 and a 503 before any output are tried again, that step alone', async () => {
    raw.answer(
      'busy',
      firstStep,
      (reply) => reply.status(429, { message: 'slow down' }, { 'retry-after': '0' }),
      (reply) => reply.status(503, { message: 'overloaded' }, { 'retry-after': '0' }),
      says('there you are'),
    )
    expect(await runRoot(stage, 'bot', 'busy')).toMatchObject({ state: 'completed', result: 'there you are', steps: 2 })
    expect(raw.requests('busy')).toHaveLength(4)
  })

  test('LOSS-4: an error event before any output is tried again', async () => {
    raw.answer(
      'error first',
      (reply) => {
        reply.event(errorEvent('server_error'))
        reply.end()
      },
      says('now'),
    )
    expect(await runRoot(stage, 'bot', 'error first')).toMatchObject({ state: 'completed', result: 'now' })
    expect(raw.requests('error first')).toHaveLength(2)
  })

  test('COST-5: an error event that tells of a bad key is not tried again', async () => {
    raw.answer('bad key inside', (reply) => {
      reply.event({
        ...errorEvent('invalid_api_key'),
        error: { type: 'authentication_error', code: 'x', message: 'no' },
      })
      reply.end()
    })
    expect(await runRoot(stage, 'bot', 'bad key inside')).toMatchObject({ state: 'failed', reason: 'model_auth' })
    expect(raw.requests('bad key inside')).toHaveLength(1)
  })

  test('STUCK-11: a model that sends no output is given up after the first-chunk limit, with headers or without', async () => {
    raw.answer(
      'say something',
      staysSilent,
      (reply) => reply.event({ type: 'response.in_progress', response: { id: 'r', created_at: 1, model: 'raw' } }),
      says('sorry, I was away'),
    )
    const before = performance.now()
    expect(await runRoot(stage, 'bot', 'say something')).toMatchObject({
      state: 'completed',
      result: 'sorry, I was away',
    })
    expect(performance.now() - before).toBeGreaterThan(2 * FIRST_CHUNK_MS)
    const [first, second] = raw.requests('say something')
    expect([first?.closedByPeerAt, second?.closedByPeerAt]).not.toContain(undefined)
  })

  test('COST-9: a Retry-After beyond the deadline is not waited for: the job fails at once', async () => {
    raw.answer('come back tomorrow', (reply) => reply.status(429, { message: 'x' }, { 'retry-after': '86400' }))
    expect(await runRoot(stage, 'bot', 'come back tomorrow')).toMatchObject({
      state: 'failed',
      reason: 'model_rate_limited',
      waitingOn: null,
      stepRetries: 0,
    })
    expect(raw.requests('come back tomorrow')).toHaveLength(1)
  })

  test('COST-9: a shorter one that is over the limit of a held slot makes the job wait for it', async () => {
    raw.answer(
      'come back soon',
      (reply) => reply.status(503, { message: 'x' }, { 'retry-after': '21' }),
      says('here I am'),
    )
    const { id } = await spawnRoot(stage, 'bot', 'come back soon')
    await waitUntil(async () => (await readJob(stage, id)).waitingOn === 'retry')
    expect(await readJob(stage, id)).toMatchObject({ state: 'running', claimToken: null, error: null })
    await stage.runtime.database.agentJob.update({ where: { id }, data: { waitUntil: new Date(0) } })
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'here I am' })
  })
})

describe('time limits', () => {
  test('STATE-3 LOSS-3: the deadline fails a job as timeout_total with its partial text and its usage, and is no abort', async () => {
    raw.answer('take your time', firstStep, ticking)
    const { id } = await spawnRoot(stage, 'bot', 'take your time', { timeoutSeconds: 1 })
    const job = await endOf(stage, id)
    expect(job).toMatchObject({
      state: 'failed',
      reason: 'timeout_total',
      result: expect.stringMatching(/^(tick )+$/),
      partial: true,
      abortRequestedAt: null,
      // Of the step that was finished; what the cut one has cost is an estimate.
      inputTokens: 10n,
      outputTokens: 5n,
    })
    const asked = { jobId: id, includePartial: false, waitSeconds: 0 }
    expect(await checkAgent(stage.runtime, { userId: 'alice', admin: false }, asked)).toMatchObject({
      state: 'failed',
      reason: 'timeout_total',
      result: job.result,
      partial: true,
      steps: 1,
      usage: { estimatedTokens: expect.any(Number) },
    })
    expect(await textsOf(id)).toEqual(['Let me look.', job.result])
    const lifeMs = (job.finishedAt?.getTime() ?? 0) - job.createdAt.getTime()
    expect(lifeMs).toBeGreaterThanOrEqual(1_000)
    expect(lifeMs).toBeLessThan(2_500)
    await waitUntil(() => raw.requests('take your time')[1]?.closedByPeerAt, { within: 2_000 })
  })
})

test('STATE-10: an endpoint that reuses tool call ids gets its tools and its spawns run', async () => {
  const spawn = { bot: { botGroup: 'forge', botHandle: 'bot' }, message: 'reused: child' }
  raw.answer(
    'reuse ids',
    callsTool('checkAgent', { jobId: 'first' }, 'call_0'),
    callsTool('spawnAgent', spawn, 'call_0'),
    callsTool('spawnAgent', spawn, 'call_0'),
    callsTool('checkAgent', { jobId: 'second' }, 'call_0'),
    says('all four'),
  )
  raw.answer('reused: child', says('here'))
  const job = await runRoot(stage, 'bot', 'reuse ids')
  expect(job).toMatchObject({ state: 'completed', result: 'all four', steps: 5 })
  const calls = await stage.runtime.database.agentToolCall.findMany({
    where: { jobId: job.id },
    orderBy: { stepIndex: 'asc' },
  })
  expect(calls.map(({ stepIndex, toolCallId }) => [stepIndex, toolCallId])).toEqual(
    [0, 1, 2, 3].map((step) => [step, 'call_0']),
  )
  expect(await stage.runtime.database.agentJob.count({ where: { parentJobId: job.id, state: 'completed' } })).toBe(2)
})
