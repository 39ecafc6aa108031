// An error event that nobody hears ends the process.
import { findEmitters } from '@offshoot/testing/emitters'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ApiUnderTest, openApi } from './api-under-test.ts'
import { readEvents } from './event-stream.ts'

const LOGIN = { BULL_BOARD_USER: 'ops', BULL_BOARD_PASSWORD: 'let me in' }

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi({ ...LOGIN, WORKER_LANES: 'default,slow' })
})
afterAll(() => api.close())

test('STUCK-19: every queue object, Redis client and Postgres session of an API has a listener for its errors', async () => {
  // Each opens what it needs: a spawn, a viewer, the dashboard, the numbers of all lanes.
  const jobId = await api.spawn()
  const viewer = new AbortController()
  const stream = await api.call(`/v1/agents/${jobId}/stream`, { as: 'alice', signal: viewer.signal })
  await api.play(jobId, [{ type: 'start', messageId: jobId }])
  await readEvents(stream).next()
  const ops = `Basic ${Buffer.from(`${LOGIN.BULL_BOARD_USER}:${LOGIN.BULL_BOARD_PASSWORD}`).toString('base64')}`
  expect((await api.call('/admin/queues/api/queues', { headers: { authorization: ops } })).status).toBe(200)
  expect((await api.call('/api/health')).status).toBe(200)
  await waitUntil(() => api.stage.runtime.deliveries.lane('default').getJob(`${jobId}-1`))

  const kinds = ['Queue', 'Worker', 'QueueEvents', 'RedisConnection', 'Redis', 'BoundPool', 'PostgresSession']
  const found = (await findEmitters()).filter(({ kind }) => kinds.includes(kind))
  viewer.abort()
  expect(found.filter(({ listeners }) => listeners === 0)).toEqual([])
  const counts = Object.fromEntries(kinds.map((kind) => [kind, found.filter((each) => each.kind === kind).length]))
  expect(counts).toMatchObject({ Queue: 2, Worker: 0, QueueEvents: 0 })
  for (const kind of ['Redis', 'RedisConnection', 'BoundPool', 'PostgresSession'])
    expect(counts[kind], kind).toBeGreaterThan(0)
})
