// Layer states in a host's hands: whose they are, and what a version guards.
import { claimNext, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOffshoot, type Offshoot } from '../src/client.ts'
import { removeOldTrees } from '../src/operations/remove-old.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { defineLayer, getLayerState, LayerVersionError } from '../src/layers.ts'

let stage: TestStage
let offshoot: Offshoot
const extensions = { layers: [defineLayer({ id: 'notes' }), defineLayer({ id: 'plan' })] }

beforeAll(async () => {
  stage = await openTestStage({ extensions })
  await stage.putBot('writer', { layers: ['notes'] })
  offshoot = await createOffshoot({ environment: stage.environment, extensions, logger: stage.runtime.logger })
})
afterAll(async () => {
  await offshoot.close()
  await stage.close()
})

test('a job’s state counts its writes, and a write that names another version says which one is there', async () => {
  const { id: jobId } = await spawnJob(stage.runtime, 'alice')
  expect(await offshoot.layerState('alice', { jobId }, 'notes')).toBeNull()
  expect(await offshoot.setLayerState('alice', { jobId }, 'notes', { a: new Date(0) }, { version: 0 })).toEqual({
    version: 1,
  })
  expect(await offshoot.layerState('alice', { jobId }, 'notes')).toEqual({ state: { a: new Date(0) }, version: 1 })
  const conflict = await offshoot.setLayerState('alice', { jobId }, 'notes', 2, { version: 0 }).catch((e: unknown) => e)
  expect(conflict).toBeInstanceOf(LayerVersionError)
  expect(conflict).toMatchObject({ layerId: 'notes', version: 1 })
  expect(await offshoot.setLayerState('alice', { jobId }, 'notes', null)).toEqual({ version: 2 })
  expect(await offshoot.layerState('alice', { jobId }, 'notes')).toEqual({ state: null, version: 2 })
  await expect(offshoot.setLayerState('alice', { jobId }, 'notes', 'x'.repeat(262_144))).rejects.toThrow(
    'The state of a layer may have 262144 bytes of JSON; this one of "notes" has 262146.',
  )
})

test('twenty writes at once are twenty versions', async () => {
  const { id: jobId } = await spawnJob(stage.runtime, 'alice')
  const written = await Promise.all(
    Array.from({ length: 20 }, (_, n) => offshoot.setLayerState('alice', { jobId }, 'notes', n)),
  )
  expect(written.map((each) => each?.version).sort((a = 0, b = 0) => a - b)).toEqual(
    Array.from({ length: 20 }, (_, n) => n + 1),
  )
})

test('SEC-1: a foreign job, an unknown one and a layer that the job does not have are the same', async () => {
  const { id: jobId } = await spawnJob(stage.runtime, 'alice')
  await offshoot.setLayerState('alice', { jobId }, 'notes', 'mine')
  for (const [userId, id, layerId] of [
    ['bob', jobId, 'notes'],
    ['alice', 'unknown', 'notes'],
    ['alice', jobId, 'plan'],
    ['alice', jobId, '__proto__'],
  ] as const) {
    expect(await offshoot.layerState(userId, { jobId: id }, layerId)).toBeNull()
    expect(await offshoot.setLayerState(userId, { jobId: id }, layerId, 'theirs')).toBeNull()
  }
  expect(await offshoot.layerState('alice', { jobId }, 'notes')).toEqual({ state: 'mine', version: 1 })
})

test('a convo’s state is its owner’s; one of the host’s own is whose who wrote first', async () => {
  const convo = { id: 'convo-of-alice', botId: 'x', botLabel: 'forge/writer', ownerId: 'alice' }
  await stage.runtime.database.convo.create({ data: convo })
  for (const convoId of [convo.id, 'chat-of-host']) {
    expect(await offshoot.setLayerState('alice', { convoId }, 'plan', 1)).toEqual({ version: 1 })
    expect(await offshoot.setLayerState('bob', { convoId }, 'plan', 2)).toBeNull()
    expect(await offshoot.layerState('bob', { convoId }, 'plan')).toBeNull()
    expect(await offshoot.layerState('alice', { convoId }, 'plan')).toEqual({ state: 1, version: 1 })
    expect(await offshoot.setLayerState('alice', { convoId }, 'unknown', 1)).toBeNull()
  }
})

test('outside a run the tools’ functions say where they work', async () => {
  await expect(getLayerState('notes')).rejects.toThrow('There is no running job here')
})

test('retention takes the states of a tree, past ones too', async () => {
  const root = await spawnJob(stage.runtime, 'alice')
  const job = await claimNext(stage.runtime, root.id)
  await spawnChild(stage.runtime, job)
  for (const state of [1, 2]) await offshoot.setLayerState('alice', { jobId: job.id }, 'notes', state)
  const { database } = stage.runtime
  expect(await database.layerPastState.count({ where: { jobId: job.id } })).toBe(1)
  const ending = { state: 'failed', reason: 'internal', result: null, partial: false } as const
  await finishAgent(stage.runtime, job, { guard: { token: job.claimToken }, ending })
  await database.agentJob.updateMany({ where: { rootJobId: job.id }, data: { finishedAt: new Date(0) } })
  await removeOldTrees(stage.runtime, 1)
  expect(await database.layerState.count({ where: { jobId: job.id } })).toBe(0)
  expect(await database.layerPastState.count({ where: { jobId: job.id } })).toBe(0)
})
