// LOSS-5: results are Postgres's. What the queue keeps of its past may go at any time, and what Postgres keeps is its own
// affair.
import { childrenOf, endOf } from '@offshoot/testing/agents'
import { type MockModel, startMockModel } from '@offshoot/testing/mock-model'
import { startWorkerProcess, type TestProcess } from '@offshoot/testing/processes'
import { redisTexts } from '@offshoot/testing/redis-texts'
import { waitUntil } from '@offshoot/testing/wait-until'
import { removeOldTrees } from '@offshoot/shared/operations/remove-old'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { type ApiUnderTest, openApi, PLANNER } from './api-under-test.ts'

let model: MockModel
let api: ApiUnderTest
let worker: TestProcess
let rootId: string
let childId: string
beforeAll(async () => {
  model = await startMockModel()
  api = await openApi({ OPENAI_BASE_URL: model.baseUrl })
  worker = await startWorkerProcess(api.stage.environment)
  model.answer('plan it', [
    { text: 'Asking.', calls: [{ name: 'spawnAgent', arguments: { ...PLANNER, message: 'a part' } }] },
    'All is planned.',
  ])
  model.answer('a part', ['One part.'])
})
beforeEach(async () => {
  rootId = await api.spawn('alice', { message: 'plan it' })
  await endOf(api.stage, rootId)
  childId = (await childrenOf(api.stage, rootId))[0]?.id ?? ''
  const lastDelivery = `${rootId}-2`
  const { deliveries } = api.stage.runtime
  await waitUntil(async () => (await deliveries.lane('default').getJobState(lastDelivery)) === 'completed')
})
afterAll(async () => {
  await worker.stop()
  await api.close()
  await model.stop()
})

/** What a reader can learn of both jobs. */
async function everyAnswer() {
  const answers: Record<string, unknown> = {}
  for (const jobId of [rootId, childId]) {
    for (const what of ['', '/tree', '/steps', '/events'])
      answers[jobId + what] = await api.json(`/v1/agents/${jobId}${what}`, { as: 'alice' })
    const { convoId } = (await api.json(`/v1/agents/${jobId}/tree`, { as: 'alice' })).body
    answers[`${jobId} convo`] = await api.json(`/v1/convos/${String(convoId)}/messages`, { as: 'alice' })
  }
  answers['list'] = await api.json(`/v1/agents?live=false&rootJobId=${rootId}`, { as: 'alice' })
  return answers
}

async function emptyRedis(): Promise<void> {
  const redis = new Redis(api.stage.config.REDIS_URL ?? '')
  for (const text of await redisTexts(api.stage)) await redis.del(text.slice(0, text.indexOf(' ')))
  await redis.quit()
}

test.each<[string, () => Promise<unknown>]>([
  ['its completed and failed deliveries', () => api.stage.runtime.deliveries.lane('default').clean(0, 0, 'completed')],
  ['the whole queue', () => api.stage.runtime.deliveries.lane('default').obliterate({ force: true })],
  ['all of Redis', emptyRedis],
])('LOSS-5: every answer is the same after the queue lost %s', async (_, lose) => {
  const before = await everyAnswer()
  expect(before[rootId]).toMatchObject({ status: 200, body: { state: 'completed', result: 'All is planned.' } })
  expect(JSON.stringify(before[childId])).toContain('"text":"One part."')
  expect(before['list']).toMatchObject({ body: { jobs: [{ jobId: childId }, { jobId: rootId }] } })
  await lose()
  expect(await api.stage.runtime.deliveries.lane('default').getJobState(`${rootId}-2`)).toBe('unknown')
  expect(await everyAnswer()).toEqual(before)
  // A viewer that comes now gets the stored messages.
  const stream = await (await api.call(`/v1/agents/${rootId}/stream`, { as: 'alice' })).text()
  expect(stream).toContain('All is planned.')
})

test('LOSS-5: Postgres removes what is old in its own time, whatever the queue keeps', async () => {
  const { database, deliveries } = api.stage.runtime
  await database.agentJob.updateMany({
    where: { rootJobId: rootId },
    data: { finishedAt: new Date(Date.now() - 31 * 24 * 3_600_000) },
  })
  expect(await removeOldTrees(api.stage.runtime, 30)).toBe(1)
  expect((await api.call(`/v1/agents/${rootId}`, { as: 'alice' })).status).toBe(404)
  expect(await deliveries.lane('default').getJobState(`${rootId}-2`)).toBe('completed')
})
