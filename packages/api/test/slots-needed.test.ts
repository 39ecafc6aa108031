// What an autoscaler sees of a fleet of real workers while it takes some away.
import { isTerminal } from '@offshoot/shared/contracts/job-state'
import { spawnOf } from '@offshoot/testing/agents'
import { type Fleet, startFleet } from '@offshoot/testing/fleet'
import { seriesIn } from '@offshoot/testing/metrics'
import { type MockModel, startMockModel } from '@offshoot/testing/mock-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ApiUnderTest, openApi } from './api-under-test.ts'

let model: MockModel
let api: ApiUnderTest
let fleet: Fleet
beforeAll(async () => {
  model = await startMockModel()
  api = await openApi({ OPENAI_BASE_URL: model.baseUrl, WORKER_LOCK_MS: '3000' })
  fleet = await startFleet(api.stage, 2)
})
afterAll(async () => {
  await fleet.stop()
  await api.close()
  await model.stop()
})

const slotsNeeded = async () =>
  seriesIn(await (await api.call('/metrics')).text(), 'offshoot_slots_needed', { lane: 'default' })

const hasEnded = async (jobId: string) =>
  isTerminal((await api.stage.runtime.database.agentJob.findUniqueOrThrow({ where: { id: jobId } })).state)

test('LOSS-14: a survivor takes over from a removed worker; slots are needed until the end, and none after it', async () => {
  const spawns = [{ name: 'spawnAgent', arguments: spawnOf('planner', 'the part') }]
  model.answer('the whole', [{ calls: spawns }, { text: 'whole', pace: { ttft: 300, tps: 100 } }])
  model.answer('the part', [{ text: 'part', pace: { ttft: 2_500, tps: 100 } }])
  expect(await slotsNeeded()).toBe(0)
  const jobId = await api.spawn('alice', { message: 'the whole' })
  await waitUntil(async () => (await slotsNeeded()) !== 0)

  const seen: (number | undefined)[] = []
  const watching = (async () => {
    for (;;) {
      const needed = await slotsNeeded()
      if (await hasEnded(jobId)) return
      seen.push(needed)
    }
  })()
  const child = await waitUntil(async () =>
    api.stage.runtime.database.agentJob.findFirst({ where: { parentJobId: jobId, state: 'running' } }),
  )
  const removed = await fleet.workerOf(child.id)
  removed.kill('SIGKILL')
  await watching
  const rows = await api.stage.runtime.database.agentJob.findMany({
    where: { rootJobId: jobId },
    orderBy: { id: 'asc' },
  })
  expect(rows).toMatchObject([
    { state: 'completed', result: 'whole' },
    { id: child.id, state: 'completed', result: 'part', attempt: 2 },
  ])
  expect(seen.length).toBeGreaterThan(20)
  expect(new Set(seen)).toEqual(new Set([1]))
  await waitUntil(async () => (await slotsNeeded()) === 0, { within: 3_000 })
})
