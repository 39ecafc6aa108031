import { storeToolEnd, storeToolStart } from '@offshoot/shared/db/journal'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ApiUnderTest, openApi, PLANNER } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
})
afterAll(() => api.close())

const post = (body: unknown, more: { query?: string; headers?: Record<string, string> } = {}) =>
  api.json(`/v1/agents${more.query ?? ''}`, { as: 'alice', method: 'POST', body, headers: more.headers ?? {} })

test('STATE-11: an async spawn answers 202 with a job that check knows at once', async () => {
  const { status, body } = await post({ ...PLANNER, message: 'hi', mode: 'async' })
  expect(status).toBe(202)
  expect(body).toMatchObject({ mode: 'async', state: 'pending', note: expect.stringContaining('do not poll') })
  expect(await api.json(`/v1/agents/${String(body['jobId'])}`, { as: 'alice' })).toMatchObject({
    status: 200,
    body: { state: 'pending', progress: { step: 0, maxSteps: 25 } },
  })
})

test('a sync spawn answers 200 with the outcome when the job ends in time', async () => {
  const answer = post({ ...PLANNER, message: 'in time' })
  const job = await waitUntil(() =>
    api.stage.runtime.database.agentJob.findFirst({ where: { inputMessage: 'in time' } }),
  )
  const token = await api.claim(job.id)
  await api.storeStep(job.id, token, 'forty-two')
  await api.finish(job.id, token, { result: 'forty-two' })
  expect(await answer).toMatchObject({
    status: 200,
    body: {
      mode: 'sync',
      jobId: job.id,
      state: 'completed',
      reason: 'completed',
      result: 'forty-two',
      steps: 1,
      usage: { totalTokens: 5 },
      messages: [{ role: 'user' }, { role: 'assistant' }],
    },
  })
})

test('a sync spawn answers 202 with the job when the wait passes first, and the job goes on', async () => {
  const { status, body } = await post({ ...PLANNER, message: 'too slow' }, { query: '?wait=0.2' })
  expect(status).toBe(202)
  expect(body).toMatchObject({ mode: 'sync', state: 'pending', jobId: expect.any(String), convoId: expect.any(String) })
  expect((await post({ ...PLANNER, message: 'x' }, { query: '?wait=301' })).status).toBe(400)
})

test('UX-6: dropping the request of a sync spawn does not stop its job', async () => {
  const leaving = new AbortController()
  const body = { ...PLANNER, message: 'left alone' }
  const answer = api.call('/v1/agents', { as: 'alice', body, signal: leaving.signal })
  const { database } = api.stage.runtime
  const job = await waitUntil(() => database.agentJob.findFirst({ where: { inputMessage: 'left alone' } }))
  await waitUntil(() => api.openRequests.size() === 1)
  leaving.abort()
  await expect(answer).rejects.toThrow('aborted')
  await waitUntil(() => api.openRequests.size() === 0, { what: 'the end of the wait' })
  expect(await database.agentJob.findUnique({ where: { id: job.id } })).toMatchObject({
    state: 'pending',
    abortRequestedAt: null,
  })
})

const over = (overrides: object) => ({ ...PLANNER, message: 'x', overrides })

describe('a refusal is a problem that carries the refused output, and leaves nothing behind', () => {
  test.each<[string, object, number, string, string]>([
    ['an empty message', { ...PLANNER, message: '' }, 400, 'invalid_request', 'message must be 1 to 100000 characters'],
    [
      'a message that is too long',
      { ...PLANNER, message: 'x'.repeat(100_001) },
      400,
      'invalid_request',
      'message must be',
    ],
    [
      'completionEvent in sync mode',
      { ...PLANNER, message: 'x', completionEvent: { name: 'e' } },
      400,
      'invalid_request',
      'completionEvent is only valid in async mode.',
    ],
    ['an unknown bot', { bot: { botId: 'nobody' }, message: 'x' }, 404, 'unknown_bot', 'Bot not found: nobody.'],
    [
      'a bot named twice',
      { bot: { botId: 'a', botGroup: 'b', botHandle: 'c' }, message: 'x' },
      400,
      'invalid_request',
      'The body',
    ],
    ['an unknown tool', over({ toolFilter: ['x'] }), 400, 'unknown_tool', 'Unknown tools: x. Known: spawnAgent'],
    [
      'a model without a colon',
      over({ modelOverride: 'gpt' }),
      400,
      'invalid_request',
      'Invalid modelOverride format: "gpt". Expected "integration:modelName".',
    ],
    [
      'an unknown provider',
      over({ modelOverride: 'x:y' }),
      400,
      'invalid_request',
      'Unknown model provider: x. Known: openai',
    ],
    [
      'the inline runner',
      { ...PLANNER, message: 'x', runner: 'inline' },
      400,
      'invalid_request',
      'The runner "inline"',
    ],
    ['a lane that is no name', { ...PLANNER, message: 'x', lane: 'a:b' }, 400, 'invalid_request', 'The body'],
    [
      'a temperature of 3',
      over({ temperature: 3 }),
      400,
      'invalid_request',
      'The body is not valid. overrides.temperature',
    ],
  ])('%s', async (_, body, status, reason, sentence) => {
    const { database } = api.stage.runtime
    const before = await Promise.all([database.agentJob.count(), database.convo.count(), database.outbox.count()])
    const answer = await post(body)
    expect(answer).toMatchObject({
      status,
      body: { status, code: reason, mode: 'sync', jobId: '', state: 'failed', reason },
    })
    expect(String(answer.body['error']).startsWith(sentence)).toBe(true)
    expect(answer.body['detail']).toBe(answer.body['error'])
    expect(await Promise.all([database.agentJob.count(), database.convo.count(), database.outbox.count()])).toEqual(
      before,
    )
  })
})

describe('SEC-2: an idempotency key', () => {
  const headers = { 'idempotency-key': 'order-7' }
  const body = { ...PLANNER, message: 'once', mode: 'async' }

  test('gives the same job for the same body, also when both come at once', async () => {
    const answers = await Promise.all([1, 2, 3, 4].map(() => post(body, { headers })))
    expect(answers.map((answer) => answer.status)).toEqual([202, 202, 202, 202])
    expect(new Set(answers.map((answer) => answer.body['jobId'])).size).toBe(1)
  })

  test('gives 409 for another body, and is the caller’s own', async () => {
    expect(await post({ ...body, message: 'twice' }, { headers })).toMatchObject({
      status: 409,
      body: { code: 'idempotency_conflict' },
    })
    expect((await api.json('/v1/agents', { as: 'bob', body, headers })).status).toBe(202)
  })

  test('must be a token', async () => {
    expect((await post(body, { headers: { 'idempotency-key': 'a b' } })).status).toBe(400)
  })
})

describe('looking at jobs', () => {
  test('the list comes in pages, newest first', async () => {
    const spawned = [await api.spawn('bob'), await api.spawn('bob'), await api.spawn('bob')]
    const first = (await api.json('/v1/agents?limit=2', { as: 'bob' })).body
    expect(first['jobs']).toMatchObject([{ jobId: spawned[2] }, { jobId: spawned[1] }])
    const rest = (await api.json(`/v1/agents?limit=2&cursor=${String(first['nextCursor'])}`, { as: 'bob' })).body
    expect(rest['jobs']).toMatchObject([{ jobId: spawned[0] }, {}])
  })

  test('check waits on the server until the job ends', async () => {
    const jobId = await api.spawn()
    const answer = api.json(`/v1/agents/${jobId}?waitSeconds=30`, { as: 'alice' })
    await waitUntil(() => api.openRequests.size() === 1)
    await api.finish(jobId, await api.claim(jobId), { state: 'failed', reason: 'model_auth', error: 'No key.' })
    expect((await answer).body).toMatchObject({ state: 'failed', reason: 'model_auth', error: 'No key.' })
  })

  test('tree, steps and events tell of a job that ran', async () => {
    const jobId = await api.spawn()
    const token = await api.claim(jobId)
    await api.storeStep(jobId, token, 'found it')
    const { database } = api.stage.runtime
    const call = { stepIndex: 0, toolCallId: 'c1', toolName: 'search' }
    await storeToolStart(database, { jobId, token }, { ...call, toolCallId: 'c2' })
    await storeToolEnd(database, { jobId, token }, { ...call, outcome: { error: new Error('no page') } })
    await api.finish(jobId, token)
    const of = async (what: string) => (await api.json(`/v1/agents/${jobId}/${what}`, { as: 'alice' })).body
    expect(await of('tree')).toMatchObject({
      rootJobId: jobId,
      jobs: [{ jobId, subtree: { jobs: 1, usage: { totalTokens: 5 } } }],
    })
    expect(await of('steps')).toMatchObject({
      steps: [
        {
          index: 0,
          whole: true,
          finishReason: 'stop',
          parts: [{ type: 'step-start' }, { type: 'text', text: 'found it' }],
        },
      ],
    })
    const { steps } = (await of('steps')) as { steps: { toolCalls: unknown[] }[] }
    expect(steps[0]?.toolCalls).toMatchObject([
      { toolCallId: 'c2', toolName: 'search', state: 'running' },
      { toolCallId: 'c1', toolName: 'search', state: 'failed', finishedAt: expect.any(String) },
    ])
    const { events, nextCursor } = await of('events?limit=1')
    expect(events).toMatchObject([{ kind: 'spawned', actorId: 'alice' }])
    expect(await of(`events?cursor=${String(nextCursor)}`)).toMatchObject({ events: [{ kind: 'ended' }] })
  })
})

describe('abort', () => {
  test('ends a queued job at once, and says so again when it is repeated', async () => {
    const jobId = await api.spawn()
    const abort = () => api.json(`/v1/agents/${jobId}/abort`, { as: 'alice', body: { reason: 'enough' } })
    expect(await abort()).toEqual({ status: 200, body: { jobId, state: 'aborted', abortedDescendants: 0 } })
    expect((await abort()).body).toMatchObject({ state: 'aborted', note: expect.stringContaining('had ended before') })
    expect((await api.json(`/v1/agents/${jobId}`, { as: 'alice' })).body).toMatchObject({
      state: 'aborted',
      reason: 'aborted_by_user',
      error: 'enough',
    })
  })

  test('needs no body', async () => {
    const jobId = await api.spawn()
    expect((await api.json(`/v1/agents/${jobId}/abort`, { as: 'alice', method: 'POST' })).body).toMatchObject({
      state: 'aborted',
    })
  })
})
