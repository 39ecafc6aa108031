// An error event that nobody hears ends the process.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { runRoot } from '@offshoot/testing/agents'
import { findEmitters } from '@offshoot/testing/emitters'
import { type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { environment: { WORKER_LANES: 'default,long' } })
  await stage.putBot('bot')
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

test('STUCK-19: every queue object, Redis client and Postgres session of a worker has a listener for its errors', async () => {
  raw.answer('hello', says('hi'))
  expect(await runRoot(stage, 'bot', 'hello')).toMatchObject({ state: 'completed' })
  const kinds = ['Queue', 'Worker', 'QueueEvents', 'RedisConnection', 'Redis', 'BoundPool', 'PostgresSession']
  const found = (await findEmitters()).filter(({ kind }) => kinds.includes(kind))
  expect(found.filter(({ listeners }) => listeners === 0)).toEqual([])
  const counts = Object.fromEntries(kinds.map((kind) => [kind, found.filter((each) => each.kind === kind).length]))
  // A worker for each lane, one queue; our own connections, and those that BullMQ makes of them to wait on.
  expect(counts).toMatchObject({ Worker: 2, Queue: 1, QueueEvents: 0, BoundPool: 2 })
  expect(counts['Redis']).toBeGreaterThanOrEqual(7)
  expect(counts['PostgresSession']).toBeGreaterThanOrEqual(3)
})
