import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ApiUnderTest, openApi, type Person } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
})
afterAll(() => api.close())

/** A job of alice that failed after one step. */
async function failedJob(): Promise<string> {
  const jobId = await api.spawn('alice')
  const token = await api.claim(jobId)
  await api.storeStep(jobId, token, 'step 1')
  await api.finish(jobId, token, { state: 'failed', reason: 'model_auth', error: 'No.', result: null })
  return jobId
}

const retry = (jobId: string, as: Person, body?: unknown) =>
  api.json(`/v1/agents/${jobId}/retry`, { as, method: 'POST', ...(body === undefined ? {} : { body }) })

test('a failed job is accepted again, with a body or without', async () => {
  for (const body of [undefined, {}, { maxSteps: 50, timeoutSeconds: 60 }]) {
    const jobId = await failedJob()
    const { status, body: job } = await retry(jobId, 'alice', body)
    expect(status).toBe(202)
    expect(job).toMatchObject({ jobId, generation: 2, usage: { totalTokens: 5 } })
    expect((await api.json(`/v1/agents/${jobId}`, { as: 'alice' })).body).toMatchObject({ state: job['state'] })
    const { events } = (await api.json(`/v1/agents/${jobId}/events`, { as: 'alice' })).body as {
      events: { kind: string }[]
    }
    expect(events.at(-1)).toMatchObject({ kind: 'retried', actorId: 'alice' })
  }
})

test('SEC-1: a foreign job gets the answer of one that does not exist, byte for byte, and stays as it is', async () => {
  const jobId = await failedJob()
  const answerOf = async (id: string) => {
    const response = await api.call(`/v1/agents/${id}/retry`, { as: 'bob', body: {} })
    const headers = Object.fromEntries(
      [...response.headers].filter(([name]) => name !== 'x-request-id' && name !== 'date'),
    )
    return { status: response.status, headers, text: await response.text() }
  }
  const foreign = await answerOf(jobId)
  expect(foreign.status).toBe(404)
  expect(foreign).toEqual(await answerOf('unknown'))
  expect((await api.json(`/v1/agents/${jobId}`, { as: 'alice' })).body).toMatchObject({ state: 'failed' })
  expect((await retry(jobId, 'admin')).status).toBe(202)
})

test('a job that completed is refused with a 400 that says why', async () => {
  const jobId = await api.spawn('alice')
  await api.finish(jobId, await api.claim(jobId))
  expect(await retry(jobId, 'alice', {})).toMatchObject({
    status: 400,
    body: { code: 'invalid_request', detail: 'Only a failed or aborted job can be retried; this one is completed.' },
  })
})

test.each([{ maxSteps: 0 }, { timeoutSeconds: 'long' }, { jobId: 'another' }, { unknown: 1 }])(
  'a body that is not valid is refused: %j',
  async (body) => {
    const jobId = await failedJob()
    expect(await retry(jobId, 'alice', body)).toMatchObject({ status: 400, body: { code: 'invalid_request' } })
    expect((await api.json(`/v1/agents/${jobId}`, { as: 'alice' })).body).toMatchObject({ state: 'failed' })
  },
)
