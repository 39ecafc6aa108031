// What is shown in part elsewhere can be read whole here, by those whose job it is.
import { resultPageSchema } from '@offshoot/shared/contracts/read-result'
import { characterCount } from '@offshoot/shared/contracts/text'
import { storeToolEnd } from '@offshoot/shared/db/journal'
import { newId } from '@offshoot/shared/ids'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ApiUnderTest, openApi, type Person } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
})
afterAll(() => api.close())

const TEXT = 'one 😀 two '.repeat(10_000)

/** An ended job of alice, with one long tool result and a long result of its own. */
async function endedJob(): Promise<{ jobId: string; ref: string }> {
  const jobId = await api.spawn()
  const token = await api.claim(jobId)
  const ref = newId()
  await storeToolEnd(
    api.stage.runtime.database,
    { jobId, token },
    {
      stepIndex: 0,
      toolCallId: 'call_1',
      toolName: 'lines',
      outcome: { output: 'in part' },
      whole: { ref, text: TEXT },
    },
  )
  await api.finish(jobId, token, { result: TEXT })
  return { jobId, ref }
}

const get = (path: string, as: Person = 'alice') => api.json(`/v1/agents/${path}`, { as })

test('COST-11: a tool’s result and the job’s own are read page by page', async () => {
  const { jobId, ref } = await endedJob()
  for (const one of [ref, jobId]) {
    const characters = characterCount(TEXT)
    expect(await get(`${jobId}/results/${one}?offset=3&length=4`)).toEqual({
      status: 200,
      body: { ref: one, characters, offset: 3, text: ' 😀 t', nextOffset: 7 },
    })
    let text = ''
    for (let offset: number | undefined = 0; offset !== undefined;) {
      const { body } = await get(`${jobId}/results/${one}?offset=${offset}&length=30000`)
      const page = resultPageSchema.parse(body)
      text += page.text
      offset = page.nextOffset
    }
    expect(text === TEXT).toBe(true)
    expect((await get(`${jobId}/results/${one}`)).body['nextOffset']).toBe(characters > 100_000 ? 100_000 : undefined)
  }
})

test('a page has at most 1,000,000 characters', async () => {
  const { jobId, ref } = await endedJob()
  for (const query of ['length=0', 'length=1000001', 'offset=-1', 'offset=x', 'other=1'])
    expect(await get(`${jobId}/results/${ref}?${query}`)).toMatchObject({
      status: 400,
      body: { code: 'invalid_request' },
    })
})

test('SEC-1: a foreign job’s result and an unknown one look the same; one job’s is not another’s', async () => {
  const mine = await endedJob()
  const other = await endedJob()
  const foreign = await get(`${mine.jobId}/results/${mine.ref}`, 'bob')
  expect(foreign).toEqual(await get(`unknown/results/${mine.ref}`, 'bob'))
  expect(foreign.status).toBe(404)
  const misplaced = await get(`${mine.jobId}/results/${other.ref}`)
  expect(misplaced).toEqual(await get(`${mine.jobId}/results/${newId()}`))
  expect(misplaced).toMatchObject({ status: 404, body: { detail: 'There is no such result, or it is not yours.' } })
  expect((await get(`${mine.jobId}/results/${other.jobId}`)).status).toBe(404)
  expect((await get(`${mine.jobId}/results/${mine.ref}`, 'admin')).status).toBe(200)
})

test('a job without a result has none to read', async () => {
  const jobId = await api.spawn()
  expect((await get(`${jobId}/results/${jobId}`)).status).toBe(404)
})
