// A waiting job holds nothing. Everything here runs through one slot.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { childrenOf, endOf, eventsOf, runRoot, spawnOf, spawnRoot } from '@offshoot/testing/agents'
import { type MockModel, startMockModel } from '@offshoot/testing/mock-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let mock: MockModel
let stage: WorkerStage

beforeAll(async () => {
  mock = await startMockModel()
  stage = await openWorkerStage(mock.baseUrl, { environment: { WORKER_CONCURRENCY: '1' } })
  await stage.putBot('bot')
})

afterAll(async () => {
  await stage.close()
  await mock.stop()
})

const spawns = (...messages: string[]) =>
  messages.map((message, at) => ({ id: `call_${at}`, name: 'spawnAgent', arguments: spawnOf('bot', message) }))

test('STUCK-1: a tree of depth 3 finishes with one slot, and a fourth level is refused', async () => {
  mock.answer('root', [{ calls: spawns('level 2, left', 'level 2, right') }, 'root done'])
  mock.answer(/^level 2/, [{ calls: spawns('level 3, a', 'level 3, b') }, 'level 2 done'])
  mock.answer(/^level 3/, [{ calls: spawns('level 4') }, 'level 3 done'])
  const root = await runRoot(stage, 'bot', 'root')
  const jobs = await stage.runtime.database.agentJob.findMany({ where: { rootJobId: root.id } })
  expect(jobs.map(({ depth, state, result }) => `${depth} ${state} ${result}`).sort()).toEqual([
    '1 completed root done',
    ...Array.from({ length: 2 }, () => '2 completed level 2 done'),
    ...Array.from({ length: 4 }, () => '3 completed level 3 done'),
  ])
  // Each waited once, and none was claimed more often than that asks for.
  expect(
    jobs.map(({ depth, attempt }) => [depth, attempt]).filter(([depth, attempt]) => attempt !== (depth === 3 ? 1 : 2)),
  ).toEqual([])
  expect(mock.calls('level 4')).toBe(0)
  const refused = mock
    .requests(/^level 3/)
    .at(-1)
    ?.messages.findLast((message) => message.role === 'tool')
  expect(refused?.content).toContain('Maximum spawn depth (3) exceeded.')
  expect(await stage.runtime.database.agentTree.findUnique({ where: { rootJobId: root.id } })).toMatchObject({
    jobs: 7,
  })
})

test('STUCK-1: more parents than slots all finish', async () => {
  mock.answer('parent', [{ calls: spawns('its child') }, 'parent done'])
  mock.answer('its child', ['child done'])
  const parents = await Promise.all(Array.from({ length: 6 }, () => spawnRoot(stage, 'bot', 'parent')))
  const ends = await Promise.all(parents.map(({ id }) => endOf(stage, id)))
  expect(ends.map(({ state, result, attempt }) => [state, result, attempt])).toEqual(
    parents.map(() => ['completed', 'parent done', 2]),
  )
  expect(mock.calls('its child')).toBe(6)
})

test('a parent that waits has no claim, and is woken once, by the last of its children', async () => {
  mock.answer('wait for two', [{ calls: spawns('quick', 'slow') }, 'both are back'])
  mock.answer('quick', ['q'])
  mock.answer('slow', [{ text: 's', pace: { ttft: 600, tps: 100 } }])
  const { id } = await spawnRoot(stage, 'bot', 'wait for two')
  const waiting = await waitUntil(async () => {
    const row = await stage.runtime.database.agentJob.findUniqueOrThrow({ where: { id } })
    return row.waitingOn === 'children' && row
  })
  expect(waiting).toMatchObject({ state: 'running', claimToken: null, workerId: null, attempt: 1, deliverySeq: 1 })
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'both are back', deliverySeq: 2 })
  expect(await eventsOf(stage, id)).toEqual(['spawned', 'waiting', 'woken', 'ended'])
  const woken = await stage.runtime.database.agentEvent.findMany({ where: { jobId: id, kind: 'woken' } })
  expect(woken).toMatchObject([{ data: { because: 'children' } }])
  expect((await childrenOf(stage, id)).map(({ state }) => state)).toEqual(['completed', 'completed'])
  expect(mock.calls('wait for two')).toBe(2)
})

test('LOSS-6: every kind of end of a child wakes its parent with the true status', async () => {
  const slow = { id: 'slow', name: 'spawnAgent', arguments: spawnOf('bot', 'too slow', { timeoutSeconds: 1 }) }
  mock.answer('mixed fates', [{ calls: [...spawns('fine', 'refused by its model'), slow] }, 'I know all three'])
  mock.answer('fine', ['f'])
  mock.answer('refused by its model', [{ status: 400 }])
  mock.answer('too slow', [{ text: 'late', pace: { ttft: 30_000, tps: 100 } }])
  const { id } = await runRoot(stage, 'bot', 'mixed fates')
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'I know all three', attempt: 2 })
  expect((await childrenOf(stage, id)).map(({ state, reason }) => [state, reason])).toEqual([
    ['completed', 'completed'],
    ['failed', 'model_refused'],
    ['failed', 'timeout_total'],
  ])
})
