// An answer of 2 MB in a few large chunks, from a real worker, and viewers that come before, during and after it.
import { createHash } from 'node:crypto'
import { startWorkerProcess, type TestProcess } from '@offshoot/testing/processes'
import { type RawModel, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ApiUnderTest, openApi } from './api-under-test.ts'
import { chunksOf, readEvents, textOf } from './event-stream.ts'

const CHUNKS = Array.from({ length: 4 }, (_, at) => `${at}${'ab'.repeat(250_000)}`)

let raw: RawModel
let api: ApiUnderTest
let worker: TestProcess
beforeAll(async () => {
  raw = await startRawModel()
  api = await openApi({ OPENAI_BASE_URL: raw.baseUrl })
  worker = await startWorkerProcess(api.stage.environment)
})
afterAll(async () => {
  await worker.stop()
  await api.close()
  await raw.stop()
})

const digest = (text: string) => `${text.length} characters, ${createHash('sha256').update(text).digest('hex')}`
const follow = async (jobId: string) => readEvents(await api.call(`/v1/agents/${jobId}/stream`, { as: 'alice' }))

test('LOSS-20: every viewer has the whole text once, whenever it came', async () => {
  const { promise: halfway, resolve: goOn } = Promise.withResolvers<void>()
  raw.answer('write a lot', async (reply) => {
    for (const chunk of CHUNKS.slice(0, 3)) reply.text(chunk)
    await halfway
    reply.text(CHUNKS[3] ?? '')
    reply.finish()
  })
  const jobId = await api.spawn('alice', { message: 'write a lot' })
  const early = await follow(jobId)
  const all = early.rest()
  await waitUntil(() => early.text().length > 1_400_000)
  const middle = (await follow(jobId)).rest()
  goOn()
  for (const events of [await all, await middle]) {
    expect(digest(textOf(events))).toBe(digest(CHUNKS.join('')))
    expect(chunksOf(events).at(-1)).toMatchObject({ type: 'finish', finishReason: 'stop' })
  }
  const late = await (await follow(jobId)).rest()
  expect(digest(textOf(late))).toBe(digest(CHUNKS.join('')))
  const { body } = await api.json(`/v1/agents/${jobId}`, { as: 'alice' })
  expect(digest(String(body['result']))).toBe(digest(CHUNKS.join('')))
})
