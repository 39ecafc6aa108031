// Counters are 64 bit in the record; JSON has them exactly, or says that it does not know.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ApiUnderTest, openApi } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
})
afterAll(() => api.close())

test('LOSS-19: a count up to 2^53 - 1 is exact everywhere, one beyond is null, and none breaks an answer', async () => {
  const jobId = await api.spawn()
  const token = await api.claim(jobId)
  await api.finish(jobId, token)
  const most = 2n ** 53n - 1n
  await api.stage.runtime.database.agentJob.update({
    where: { id: jobId },
    data: {
      inputTokens: most,
      outputTokens: most + 2n,
      reasoningTokens: null,
      totalTokens: 2n ** 63n - 1n,
      costMicroUsd: 2n ** 63n - 1n,
    },
  })
  const usage = { inputTokens: Number(most), outputTokens: null, reasoningTokens: null, totalTokens: null }
  expect(await api.json(`/v1/agents/${jobId}`, { as: 'alice' })).toMatchObject({ status: 200, body: { usage } })
  const job = { usage, costUsd: null }
  const list = await api.json('/v1/agents', { as: 'alice' })
  expect(list).toMatchObject({ status: 200, body: { jobs: [job] } })
  const tree = await api.json(`/v1/agents/${jobId}/tree`, { as: 'alice' })
  expect(tree).toMatchObject({ status: 200, body: { jobs: [{ ...job, subtree: { jobs: 1, usage, costUsd: null } }] } })
})

test('LOSS-19: a cost is told in dollars, to the micro-dollar', async () => {
  const jobId = await api.spawn()
  await api.stage.runtime.database.agentJob.update({ where: { id: jobId }, data: { costMicroUsd: 3_000_000_001n } })
  const { body } = await api.json('/v1/agents?live=true', { as: 'alice' })
  expect(body).toMatchObject({ jobs: [{ costUsd: 3000.000001 }] })
})
