import { gzipSync } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ApiUnderTest, openApi, PLANNER } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
})
afterAll(() => api.close())

describe('a request without a valid key', () => {
  test.each([
    ['no header', {}],
    ['an unknown key', { authorization: 'Bearer nobody' }],
    ['another scheme', { authorization: 'Basic YTpi' }],
    ['an empty key', { authorization: 'Bearer ' }],
  ])('%s gives 401 and says how to sign in', async (_, headers) => {
    const response = await api.call('/v1/agents', { headers })
    expect(response.status).toBe(401)
    expect(response.headers.get('www-authenticate')).toBe('Bearer realm="Offshoot"')
    expect(response.headers.get('content-type')).toContain('application/problem+json')
    expect(await response.json()).toMatchObject({ status: 401, code: 'unauthorized' })
  })

  test('a revoked key is no key', async () => {
    const { database } = api.stage.runtime
    const { createApiKey, hashApiKey } = await import('@offshoot/shared/db/users')
    const key = await createApiKey(database, 'alice')
    const headers = { authorization: `Bearer ${key}` }
    expect((await api.call('/v1/bots', { headers })).status).toBe(200)
    await database.apiKey.update({ where: { hash: hashApiKey(key) }, data: { revokedAt: new Date() } })
    expect((await api.call('/v1/bots', { headers })).status).toBe(401)
  })

  test('its body is not read', async () => {
    const response = await api.call('/v1/agents', { body: { message: 'x'.repeat(2_000_000) } })
    expect(response.status).toBe(401)
  })

  test('an address that does not exist is a 404 with a code', async () => {
    expect(await api.json('/v1/nothing', { as: 'alice' })).toMatchObject({ status: 404, body: { code: 'not_found' } })
    expect(await api.json('/nothing')).toMatchObject({ status: 404, body: { code: 'not_found' } })
  })
})

const spawn = (body: unknown, headers = {}) => api.json('/v1/agents', { as: 'alice', method: 'POST', body, headers })

describe('a body', () => {
  test('over 1 MB gives 413, plain and compressed', async () => {
    const large = JSON.stringify({ ...PLANNER, message: 'x'.repeat(1_048_576) })
    expect(await spawn(large)).toMatchObject({ status: 413, body: { code: 'body_too_large' } })
    const response = await fetch(`${api.url}/v1/agents`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${api.keys.alice}`,
        'content-type': 'application/json',
        'content-encoding': 'gzip',
      },
      body: new Uint8Array(gzipSync(large)),
    })
    expect(response.status).toBe(413)
  })

  test('that is not JSON gives 400 or 415', async () => {
    expect(await spawn('{oops')).toMatchObject({ status: 400, body: { code: 'invalid_request' } })
    expect(await spawn('hello', { 'content-type': 'text/plain' })).toMatchObject({
      status: 415,
      body: { code: 'unsupported_media_type' },
    })
  })

  test('SEC-2: with an unknown field is refused by name', async () => {
    const answer = await spawn({ ...PLANNER, message: 'hi', jobId: 'mine' })
    expect(answer).toMatchObject({ status: 400, body: { code: 'invalid_request', state: 'failed', jobId: '' } })
    expect(answer.body['detail']).toContain('jobId')
  })

  test('SEC-9: names that a prototype has give a normal answer', async () => {
    expect(await spawn('{"__proto__":{"admin":true},"message":"hi"}')).toMatchObject({ status: 400 })
    const bots = ['constructor', '__proto__', 'toString']
    for (const name of bots) {
      const unknown = await spawn({ bot: { botGroup: name, botHandle: name }, message: 'hi' })
      expect(unknown).toMatchObject({ status: 404, body: { error: `Bot not found: ${name}/${name}.` } })
      expect((await api.json(`/v1/bots/${name}/${name}`, { as: 'alice' })).status).toBe(404)
    }
    const tools = await spawn({ ...PLANNER, message: 'hi', overrides: { toolFilter: ['constructor', 'toString'] } })
    expect(tools).toMatchObject({ status: 400, body: { code: 'unknown_tool' } })
    const tags = await api.spawn('alice', { tags: { constructor: 'a', toString: 'b' } })
    const { body } = await api.json(`/v1/agents?rootJobId=${tags}`, { as: 'alice' })
    expect(body['jobs']).toMatchObject([{ tags: { constructor: 'a', toString: 'b' } }])
  })

  test('nested 100,000 deep is refused', async () => {
    const deep = `{"bot":{"botId":"x"},"message":"x","completionEvent":{"name":"e","data":{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}}}`
    expect(await spawn(deep)).toMatchObject({ status: 400, body: { code: 'invalid_request' } })
  })

  test('LOSS-7: U+0000 is kept legibly, in values, keys, addresses and queries', async () => {
    const jobId = await api.spawn('alice', { message: 'a\u0000b', tags: { 'k\u0000': 'v\u0000' } })
    const { body } = await api.json(`/v1/agents?rootJobId=${jobId}`, { as: 'alice' })
    expect(body['jobs']).toMatchObject([{ tags: { 'k\u2400': 'v\u2400' } }])
    expect((await api.json('/v1/agents/%00', { as: 'alice' })).status).toBe(404)
    expect((await api.json('/v1/agents?convoId=%00', { as: 'alice' })).body).toEqual({ jobs: [] })
    expect(await spawn({ bot: { botId: '\u0000' }, message: 'x' })).toMatchObject({ body: { code: 'unknown_bot' } })
  })
})

test('an address that cannot be decoded is the caller’s mistake', async () => {
  expect(await api.json('/v1/agents/%E0%A4%A', { as: 'alice' })).toMatchObject({
    status: 400,
    body: { code: 'invalid_request' },
  })
})

test('a query is held to its schema', async () => {
  for (const query of ['state=nope', 'limit=0', 'limit=1000', 'limit=1&limit=2', 'unknown=1'])
    expect((await api.json(`/v1/agents?${query}`, { as: 'alice' })).status).toBe(400)
})

test('every answer has a request id, and keeps a plain one that was given', async () => {
  const given = await api.call('/livez', { headers: { 'x-request-id': 'mine-1' } })
  expect(given.headers.get('x-request-id')).toBe('mine-1')
  const odd = await api.call('/livez', { headers: { 'x-request-id': 'a b' } })
  expect(odd.headers.get('x-request-id')).toMatch(/^[0-9a-f-]{36}$/)
})

test('SEC-10: every answer has nosniff and a policy that allows nothing', async () => {
  for (const path of ['/v1/agents', '/livez', '/nothing']) {
    const { headers } = await api.call(path, { as: 'alice' })
    expect(headers.get('x-content-type-options')).toBe('nosniff')
    expect(headers.get('content-security-policy')).toContain("default-src 'none'")
  }
})
