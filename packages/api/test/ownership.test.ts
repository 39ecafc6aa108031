import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ApiUnderTest, openApi, type Person, PLANNER } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
})
afterAll(() => api.close())

/** Status, headers that may not tell the two apart, and the body's bytes. */
async function answerOf(path: string, as: Person, body?: unknown) {
  const response = await api.call(path, { as, ...(body === undefined ? {} : { body }) })
  const headers = Object.fromEntries(
    [...response.headers].filter(([name]) => name !== 'x-request-id' && name !== 'date'),
  )
  return { status: response.status, headers, text: await response.text() }
}

describe('SEC-1: what is somebody else’s looks like what does not exist', () => {
  test.each(['', '/tree', '/steps', '/events', '/results/x', '/stream', '?waitSeconds=1', '?includePartial=true'])(
    'GET /v1/agents/:jobId%s',
    async (rest) => {
      const jobId = await api.spawn('alice')
      const foreign = await answerOf(`/v1/agents/${jobId}${rest}`, 'bob')
      expect(foreign).toEqual(await answerOf(`/v1/agents/unknown${rest}`, 'bob'))
      expect(foreign.status).toBe(404)
    },
  )

  test('POST /v1/agents/:jobId/abort, which leaves the job alone', async () => {
    const jobId = await api.spawn('alice')
    const foreign = await answerOf(`/v1/agents/${jobId}/abort`, 'bob', {})
    expect(foreign).toEqual(await answerOf('/v1/agents/unknown/abort', 'bob', {}))
    expect(foreign.status).toBe(404)
    expect((await api.json(`/v1/agents/${jobId}`, { as: 'alice' })).body).toMatchObject({ state: 'pending' })
  })

  test('the list shows the caller’s jobs alone, whatever it asks for', async () => {
    const jobId = await api.spawn('alice')
    expect((await api.json(`/v1/agents?rootJobId=${jobId}`, { as: 'bob' })).body).toEqual({ jobs: [] })
    expect((await api.json(`/v1/agents?rootJobId=${jobId}`, { as: 'alice' })).body['jobs']).toHaveLength(1)
    expect((await api.json(`/v1/agents?rootJobId=${jobId}`, { as: 'admin' })).body['jobs']).toHaveLength(1)
  })

  test('convos: messages, a new message, the stream', async () => {
    const { convoId } = (await api.json('/v1/convos', { as: 'alice', body: PLANNER })).body
    const message = { messages: [{ id: 'm1', role: 'user', parts: [{ type: 'text', text: 'hi' }] }] }
    for (const [rest, body] of [['/messages'], ['/messages', message], ['/stream']] as const) {
      const foreign = await answerOf(`/v1/convos/${String(convoId)}${rest}`, 'bob', body)
      expect(foreign).toEqual(await answerOf(`/v1/convos/unknown${rest}`, 'bob', body))
      expect(foreign.status).toBe(404)
    }
    expect(await api.stage.runtime.database.aiMessage.count({ where: { convoId: String(convoId) } })).toBe(0)
  })

  test('bots: reading, overwriting, spawning', async () => {
    const bot = { name: 'Mine', integration: 'openai', modelName: 'gpt-5' }
    await api.json('/v1/bots/alices/own', { as: 'alice', method: 'PUT', body: bot })
    expect(await answerOf('/v1/bots/alices/own', 'bob')).toEqual(await answerOf('/v1/bots/alices/none', 'bob'))
    const over = await api.json('/v1/bots/alices/own', { as: 'bob', method: 'PUT', body: { ...bot, name: 'Bobs' } })
    expect(over).toMatchObject({ status: 404, body: { code: 'not_found' } })
    const spawned = { bot: { botGroup: 'alices', botHandle: 'own' }, message: 'hi' }
    expect(await api.json('/v1/agents', { as: 'bob', body: spawned })).toMatchObject({
      status: 404,
      body: { error: 'Bot not found: alices/own.' },
    })
    expect((await api.json('/v1/bots/alices/own', { as: 'alice' })).body).toMatchObject({ name: 'Mine', version: 1 })
  })
})

describe('a job that runs as somebody else', () => {
  test('is the owner’s and the caller’s, and nobody’s else', async () => {
    const jobId = await api.spawn('alice', { runAsUserId: 'bob' })
    expect((await api.json(`/v1/agents?rootJobId=${jobId}`, { as: 'bob' })).body['jobs']).toMatchObject([
      { ownerId: 'bob', triggeredBy: 'alice' },
    ])
    expect((await api.json(`/v1/agents/${jobId}`, { as: 'alice' })).status).toBe(200)
    expect((await api.json(`/v1/agents/${jobId}`, { as: 'service' })).status).toBe(404)
  })

  test('needs a right: a delegate’s or an admin’s', async () => {
    const body = { ...PLANNER, message: 'hi', mode: 'async', runAsUserId: 'alice' }
    const refused = await api.json('/v1/agents', { as: 'bob', body })
    expect(refused).toMatchObject({ status: 403, body: { code: 'not_authorized', state: 'failed', jobId: '' } })
    expect(refused.body['error']).toMatch(/^Not authorized to spawn sub-agent as user alice\./)
    expect((await api.json('/v1/agents', { as: 'admin', body })).status).toBe(202)
  })
})

describe('a service key', () => {
  test('acts as the user it names, whose row comes on first use', async () => {
    const headers = { 'x-on-behalf-of': 'carol' }
    const { body } = await api.json('/v1/agents', {
      as: 'service',
      headers,
      body: { ...PLANNER, message: 'hi', mode: 'async' },
    })
    const jobs = await api.json('/v1/agents', { as: 'service', headers })
    expect(jobs.body['jobs']).toMatchObject([{ jobId: body['jobId'], ownerId: 'carol', triggeredBy: 'carol' }])
    expect(await api.stage.runtime.database.user.findUnique({ where: { id: 'carol' } })).toMatchObject({ admin: false })
    expect((await api.json('/v1/agents', { as: 'service' })).body).toEqual({ jobs: [] })
  })

  test('never acts with the rights of an admin that it names', async () => {
    const headers = { 'x-on-behalf-of': 'admin' }
    const jobId = await api.spawn('alice')
    expect((await api.json(`/v1/agents/${jobId}`, { as: 'service', headers })).status).toBe(404)
    const body = { ...PLANNER, message: 'hi', runAsUserId: 'bob' }
    expect((await api.json('/v1/agents', { as: 'service', headers, body })).status).toBe(403)
    // Nor do the bots that it starts so.
    const spawned = await api.json('/v1/agents', {
      as: 'service',
      headers,
      body: { ...PLANNER, message: 'hi', mode: 'async' },
    })
    const convo = await api.json('/v1/convos', { as: 'service', headers, body: PLANNER })
    const said = { messages: [{ role: 'user', parts: [{ type: 'text', text: 'hi' }] }] }
    const turn = await api.call(`/v1/convos/${String(convo.body['convoId'])}/messages`, {
      as: 'service',
      headers,
      body: said,
    })
    await turn.body?.cancel()
    for (const id of [String(spawned.body['jobId']), turn.headers.get('x-agent-job-id') ?? ''])
      expect(await api.stage.runtime.database.agentJob.findUnique({ where: { id } })).toMatchObject({
        ownerId: 'admin',
        grant: 'context',
      })
    const bot = { name: 'Over', integration: 'openai', modelName: 'gpt-5' }
    expect(
      (await api.json('/v1/bots/forge/planner', { as: 'service', headers, method: 'PUT', body: bot })).status,
    ).toBe(403)
  })

  test('is needed to name somebody else', async () => {
    const answer = await api.json('/v1/agents', { as: 'admin', headers: { 'x-on-behalf-of': 'alice' } })
    expect(answer).toMatchObject({ status: 403, body: { code: 'not_authorized' } })
  })
})
