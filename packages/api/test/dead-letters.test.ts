import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ApiUnderTest, type CallOptions, openApi } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
})
afterAll(() => api.close())

interface Page {
  deadLetters: { id: string; jobId: string }[]
  nextCursor?: string
}

/** A spawn's delivery that was given up. */
async function deadLetter(): Promise<{ id: string; jobId: string }> {
  const { outbox } = api.stage.runtime.database
  const jobId = await api.spawn()
  const { id } = await waitUntil(() => outbox.findFirst({ where: { jobId, doneAt: { not: null } } }))
  const given = { doneAt: null, attempts: 150, lastError: 'it did not answer', deadAt: new Date() }
  await outbox.update({ where: { id }, data: given })
  return { id: id.toString(), jobId }
}

const list = async (query = '') => (await api.json(`/v1/dead-letters${query}`, { as: 'admin' })).body as unknown as Page
const resend = (id: string, options: CallOptions = { as: 'admin' }) =>
  api.json(`/v1/dead-letters/${id}/resend`, { method: 'POST', ...options })

test('an admin sees what was given up, newest first and page by page, and sends it again', async () => {
  const [first, second, third] = [await deadLetter(), await deadLetter(), await deadLetter()]
  const all = await list()
  expect(all.deadLetters.map(({ id }) => id)).toEqual([third.id, second.id, first.id])
  expect(all.deadLetters[0]).toEqual({
    id: third.id,
    jobId: third.jobId,
    kind: 'delivery',
    key: `delivery:${third.jobId}-1`,
    attempts: 150,
    lastError: 'it did not answer',
    createdAt: expect.any(String),
    deadAt: expect.any(String),
  })
  const page = await list('?limit=2')
  expect(page.deadLetters.map(({ id }) => id)).toEqual([third.id, second.id])
  expect(await list(`?limit=2&cursor=${page.nextCursor}`)).toMatchObject({ deadLetters: [{ id: first.id }] })
  expect(await list(`?limit=2&cursor=${page.nextCursor}`)).not.toHaveProperty('nextCursor')

  expect(await resend(second.id)).toEqual({
    status: 202,
    body: { id: second.id, jobId: second.jobId, kind: 'delivery', key: `delivery:${second.jobId}-1` },
  })
  expect((await list()).deadLetters.map(({ id }) => id)).toEqual([third.id, first.id])
  const { events } = (await api.json(`/v1/agents/${second.jobId}/events`, { as: 'alice' })).body as {
    events: object[]
  }
  expect(events.at(-1)).toMatchObject({ kind: 'resent', actorId: 'admin' })
})

test('one that was told already is refused with a sentence, one that is unknown is not found', async () => {
  const { id } = await deadLetter()
  await resend(id)
  await waitUntil(
    async () => (await api.stage.runtime.database.outbox.findUnique({ where: { id: BigInt(id) } }))?.doneAt,
  )
  const { status, body } = await resend(id)
  expect({ status, body }).toMatchObject({ status: 400, body: { code: 'invalid_request' } })
  expect(body['detail']).toMatch(/^The entry was told at .*Z\. There is nothing to send again\.$/)
  for (const unknown of ['999999999', '0', 'x', '1e3', '99999999999999999999'])
    expect(await resend(unknown)).toMatchObject({ status: 404, body: { code: 'not_found' } })
})

test.each<[string, CallOptions, number]>([
  ['nobody', {}, 401],
  ['the owner of the job', { as: 'alice' }, 403],
  ['another user', { as: 'bob' }, 403],
  ['a service', { as: 'service' }, 403],
  ['a service in an admin’s name', { as: 'service', headers: { 'x-on-behalf-of': 'admin' } }, 403],
])('SEC-6: dead letters are not for %s', async (_, options, status) => {
  const { id } = await deadLetter()
  for (const path of ['/v1/dead-letters', '/v1/dead-letters?limit=x', `/v1/dead-letters/${id}`]) {
    const response = await api.call(path, options)
    expect(response.status).toBe(status)
    expect(response.headers.get('content-type')).toContain('application/problem+json')
    const { code } = (await response.json()) as { code: string }
    expect(code).toBe(status === 401 ? 'unauthorized' : 'not_authorized')
  }
  expect((await resend(id, options)).status).toBe(status)
  expect((await resend('999999999', options)).status).toBe(status)
  expect((await list()).deadLetters[0]).toMatchObject({ id, attempts: 150 })
})

test.each(['?limit=0', '?limit=201', '?cursor=x', '?cursor=-1', '?state=dead'])(
  'a query is checked: %s',
  async (query) => {
    expect(await api.json(`/v1/dead-letters${query}`, { as: 'admin' })).toMatchObject({
      status: 400,
      body: { code: 'invalid_request' },
    })
  },
)
