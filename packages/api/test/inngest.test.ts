// /api/inngest, called as Inngest does.
import { createHmac } from 'node:crypto'
import { Inngest } from 'inngest'
import { afterAll, beforeEach, describe, expect, test } from 'vitest'
import { startInngestStub } from '@offshoot/testing/inngest-stub'
import { type ApiUnderTest, openApi } from './api-under-test.ts'

const inngest = await startInngestStub()
const ran: unknown[] = []
const afterPoem = new Inngest({ id: 'shop', isDev: false }).createFunction(
  { id: 'after-poem', triggers: { event: 'poem/written' } },
  ({ event }) => {
    ran.push(event.data)
    return 'thanks'
  },
)
const extensions = { inngestFunctions: [afterPoem] }
const KEYS = { INNGEST_EVENT_KEY: 'event-key', INNGEST_SIGNING_KEY: 'signkey-test-0123456789abcdef' }
const WITH_KEYS = { ...KEYS, INNGEST_BASE_URL: inngest.url, NODE_ENV: 'production', LOG_LEVEL: 'silent' }

const apis: ApiUnderTest[] = []
async function open(environment: Record<string, string>): Promise<ApiUnderTest> {
  const api = await openApi(environment, { extensions })
  apis.push(api)
  return api
}
const [production, dev, off] = [
  await open(WITH_KEYS),
  await open({ INNGEST_DEV: 'true', INNGEST_BASE_URL: inngest.url, LOG_LEVEL: 'silent' }),
  await open({}),
]
beforeEach(() => void (ran.length = 0))
afterAll(async () => {
  for (const api of apis) await api.close()
  await inngest.stop()
})

/** What Inngest sends to run a function. The keys are in the order in which they are signed. */
const event = { data: { jobId: 'j1', state: 'completed' }, id: 'agent-job-j1-1', name: 'poem/written' }
const RUN = JSON.stringify({
  ctx: {
    attempt: 0,
    disable_immediate_execution: false,
    run_id: 'r1',
    stack: { current: 0, stack: [] },
    use_api: false,
  },
  event,
  events: [event],
  steps: {},
  use_api: false,
  version: 1,
})
const RUN_PATH = '/api/inngest?fnId=offshoot-after-poem&stepId=step'

function sign(body: string, { key = KEYS.INNGEST_SIGNING_KEY, ageSeconds = 0 } = {}): Record<string, string> {
  const at = Math.floor(Date.now() / 1_000) - ageSeconds
  const secret = key.replace(/^signkey-\w+-/, '')
  const signature = createHmac('sha256', secret).update(`${body}${at}`).digest('hex')
  return { 'x-inngest-signature': `t=${at}&s=${signature}` }
}

async function call(api: ApiUnderTest, method: string, body?: string, headers: Record<string, string> = {}) {
  const path = method === 'POST' ? RUN_PATH : '/api/inngest'
  const response = await api.call(path, { method, headers, ...(body === undefined ? {} : { body }) })
  return { status: response.status, text: await response.text() }
}

describe('SEC-8: with a signing key', () => {
  test.each<[string, string, string | undefined, () => Record<string, string>]>([
    ['a run that is not signed', 'POST', RUN, () => ({})],
    ['a run without a body', 'POST', undefined, () => ({})],
    ['a registration that is not signed', 'PUT', '{}', () => ({})],
    ['a registration that is not signed, in band', 'PUT', '{}', () => ({ 'x-inngest-sync-kind': 'in_band' })],
    ['a look that is not signed', 'GET', undefined, () => ({})],
    ['another method', 'DELETE', undefined, () => ({})],
    ['a signature of another key', 'POST', RUN, () => sign(RUN, { key: 'signkey-test-ffff' })],
    ['a signature of another body', 'POST', RUN, () => sign('{}')],
    ['a signature of an hour ago', 'POST', RUN, () => sign(RUN, { ageSeconds: 3_600 })],
    ['a signature that is none', 'POST', RUN, () => ({ 'x-inngest-signature': 'nonsense' })],
  ])('%s gets a 401 and runs nothing', async (_, method, body, headers) => {
    const { status, text } = await call(production, method, body, headers())
    expect(status).toBe(401)
    expect(text).not.toContain('after-poem')
    expect(ran).toEqual([])
    expect(inngest.asked).toEqual([])
  })

  test('a signed run is served by the function of the config module', async () => {
    expect(await call(production, 'POST', RUN, sign(RUN))).toEqual({ status: 200, text: '"thanks"' })
    expect(ran).toEqual([{ jobId: 'j1', state: 'completed' }])
  })

  test('a signed registration tells which functions there are', async () => {
    const body = JSON.stringify({ url: `${production.url}/api/inngest` })
    const { status, text } = await call(production, 'PUT', body, { ...sign(body), 'x-inngest-sync-kind': 'in_band' })
    expect(status).toBe(200)
    expect(JSON.parse(text)).toMatchObject({ app_id: 'offshoot', functions: [{ id: 'offshoot-after-poem' }] })
  })

  test('a body beyond 4 MB is refused', async () => {
    const body = JSON.stringify({ filler: 'x'.repeat(4 * 1_024 * 1_024) })
    expect((await call(production, 'POST', body, sign(body))).status).toBe(413)
  })
})

test('with INNGEST_DEV the dev server needs no signature', async () => {
  expect(await call(dev, 'POST', RUN)).toEqual({ status: 200, text: '"thanks"' })
  expect((await call(dev, 'GET')).status).toBe(200)
})

test('SEC-8: with Inngest off the address does not exist', async () => {
  for (const method of ['GET', 'PUT', 'POST'])
    expect(await call(off, method, method === 'GET' ? undefined : RUN, sign(RUN))).toMatchObject({
      status: 404,
      text: expect.stringContaining('"code":"not_found"'),
    })
})
