import { request as httpRequest } from 'node:http'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ApiUnderTest, openApi, PLANNER } from './api-under-test.ts'

const LOGIN = { BULL_BOARD_USER: 'ops', BULL_BOARD_PASSWORD: 'let me: in' }

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi({ ...LOGIN, WORKER_LANES: 'default,slow' })
})
afterAll(() => api.close())

const basic = (user: string, password: string) => ({
  authorization: `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}`,
})
const ops = basic(LOGIN.BULL_BOARD_USER, LOGIN.BULL_BOARD_PASSWORD)

/** Sends the path as it is, which `fetch` would tidy up. */
async function raw(
  path: string,
  headers: Record<string, string> = {},
  method = 'GET',
): Promise<{ status: number; text: string }> {
  const { hostname, port } = new URL(api.url)
  return new Promise((resolve, reject) => {
    const request = httpRequest({ hostname, port, path, method, headers }, (response) => {
      let text = ''
      response.on('data', (chunk: Buffer) => (text += chunk.toString()))
      response.on('end', () => resolve({ status: response.statusCode ?? 0, text }))
    })
    request.on('error', reject)
    request.end()
  })
}

const PATHS = [
  '/admin/queues',
  '/admin/queues/',
  '/admin/queues/queue/agents-default',
  '/admin/queues/api/queues',
  '/admin/queues/api/redis/stats',
  '/admin/queues/static/images/logo.svg',
  '/admin/queues/nothing',
  '/ADMIN/QUEUES/API/QUEUES',
  '//admin/queues',
  '/admin//queues/api/queues',
  '/admin/queues//api/queues',
  '/admin/%71ueues/api/queues',
  '/%61dmin/queues',
  '/admin%2fqueues',
  '/admin/queues%2f',
  '/admin/queues%2fapi%2fqueues',
  '/admin/queues/%61pi/queues',
  '/admin/queues/%2e%2e/queues/api/queues',
  '/admin/queues/../queues/api/queues',
  '/livez/../admin/queues/api/queues',
  '/admin/queues/static/../api/queues',
  '/admin/queues/api/queues/',
  '/admin/queues/api/queues?activeQueue=agents-default',
  '/admin/queues;/api/queues',
  '/admin/queues/.',
]

describe('SEC-3: the dashboard', () => {
  test.each(PATHS)('%s shows nothing without a login', async (path) => {
    const { status, text } = await raw(path)
    expect([400, 401, 404]).toContain(status)
    expect(text).toMatch(/^\{"type":"urn:offshoot:problem:/)
  })

  test('its page, assets and API are there for the configured login', async () => {
    expect((await raw('/admin/queues', ops)).text).toContain('<title>Offshoot</title>')
    expect((await raw('/admin/queues/static/images/logo.svg', ops)).status).toBe(200)
    const { queues } = JSON.parse((await raw('/admin/queues/api/queues', ops)).text) as {
      queues: { name: string; readOnlyMode: boolean }[]
    }
    expect(queues).toMatchObject([
      { name: 'agents-default', displayName: 'default', readOnlyMode: true },
      { name: 'agents-slow', displayName: 'slow', readOnlyMode: true },
    ])
  })

  test('an admin’s API key opens it, as Bearer or as the Basic password', async () => {
    expect((await raw('/admin/queues', { authorization: `Bearer ${api.keys.admin}` })).status).toBe(200)
    expect((await raw('/admin/queues', basic('whoever', api.keys.admin))).status).toBe(200)
  })

  test.each<[string, () => Record<string, string>, number]>([
    ['a wrong password', () => basic('ops', 'guess'), 401],
    ['a wrong user', () => basic('root', LOGIN.BULL_BOARD_PASSWORD), 401],
    ['half a password', () => basic('ops', 'let me'), 401],
    ['an empty login', () => basic('', ''), 401],
    ['no colon', () => ({ authorization: `Basic ${Buffer.from('ops').toString('base64')}` }), 401],
    ['a user’s key', () => ({ authorization: `Bearer ${api.keys.alice}` }), 403],
    ['a user’s key as the password', () => basic('ops', api.keys.alice), 403],
    [
      'a service key in an admin’s name',
      () => ({ authorization: `Bearer ${api.keys.service}`, 'x-on-behalf-of': 'admin' }),
      403,
    ],
  ])('%s does not', async (_, headers, expected) => {
    const { status, text } = await raw('/admin/queues/api/queues', headers())
    expect(status).toBe(expected)
    expect(text).toMatch(/^\{"type":"urn:offshoot:problem:/)
  })

  test('asks for a login in a way that browsers understand', async () => {
    const response = await api.call('/admin/queues')
    expect(response.headers.get('www-authenticate')).toBe('Basic realm="Offshoot", charset="UTF-8"')
  })

  test.each([
    ['PUT', '/api/queues/pause'],
    ['PUT', '/api/queues/agents-default/pause'],
    ['PUT', '/api/queues/agents-default/empty'],
    ['PUT', '/api/queues/agents-default/obliterate'],
    ['POST', '/api/queues/agents-default/add'],
    ['PATCH', '/api/queues/agents-default/x/update-data'],
    ['DELETE', '/api/queues/agents-default'],
    ['OPTIONS', '/api/queues'],
  ])('changes nothing: %s %s', async (method, path) => {
    expect((await raw(`/admin/queues${path}`, ops, method)).status).toBe(405)
    expect(await api.stage.runtime.deliveries.lane('default').isPaused()).toBe(false)
  })

  test('has a policy without inline scripts, and nothing on its page comes from outside', async () => {
    const page = await api.call('/admin/queues', { headers: ops })
    const policy = page.headers.get('content-security-policy')
    expect(policy).toContain("default-src 'none'")
    expect(policy).toContain("script-src 'self';")
    expect(page.headers.get('x-content-type-options')).toBe('nosniff')
    expect(await page.text()).not.toMatch(/(?:src|href)="https?:/)
  })

  test('shows a delivery by its bot, with job, owner and depth, and nothing that was said', async () => {
    const jobId = await api.spawn('alice', { message: 'my secret question' })
    const { text } = await raw('/admin/queues/api/queues?activeQueue=agents-default&status=prioritized', ops)
    expect(text).toContain(`forge/planner · job ${jobId} · owner alice · depth 1`)
    expect(text).not.toContain('secret question')
  })
})

test('SEC-3: without a configured login there is no dashboard, for admins neither', async () => {
  const off = await openApi()
  try {
    for (const headers of [{}, ops, { authorization: `Bearer ${off.keys.admin}` }])
      for (const path of ['/admin/queues', '/admin/queues/api/queues', '/admin/queues/static/images/logo.svg'])
        expect((await off.call(path, { headers })).status).toBe(404)
    expect(
      (await off.json('/v1/agents', { as: 'alice', body: { ...PLANNER, message: 'x', mode: 'async' } })).status,
    ).toBe(202)
  } finally {
    await off.close()
  }
})
