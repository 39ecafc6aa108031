import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ApiUnderTest, openApi } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi({ WORKER_LANES: 'default,slow' })
})
afterAll(() => api.close())

test('UX-11: liveness, readiness and progress are separate, and need no key', async () => {
  expect(await api.json('/livez')).toEqual({ status: 200, body: { status: 'live' } })
  expect(await api.json('/readyz')).toEqual({ status: 200, body: { status: 'ready' } })
  expect(await api.json('/api/health')).toEqual({
    status: 200,
    body: {
      status: 'ok',
      subAgents: { activeJobs: 0, pendingJobs: 0, waitingJobs: 0, totalJobs: 0 },
      queue: { paused: false, depth: 0, oldestAgeMs: 0, workers: 0 },
    },
  })
})

test('the numbers tell jobs that are active, pending and waiting apart, over all lanes', async () => {
  const { database, deliveries } = api.stage.runtime
  await api.claim(await api.spawn())
  await api.spawn('alice', { lane: 'slow' })
  const waiting = await api.spawn()
  await api.claim(waiting)
  await database.agentJob.update({ where: { id: waiting }, data: { waitingOn: 'children', claimToken: null } })
  await database.worker.create({ data: { id: 'w1', host: 'here', pid: 1, lanes: ['default'] } })
  // A host that runs inline jobs takes no delivery.
  await database.worker.create({ data: { id: 'w2', host: 'here', pid: 2, lanes: [] } })
  await deliveries.lane('slow').pause()
  const { body } = await api.json('/api/health')
  expect(body).toMatchObject({
    status: 'ok',
    subAgents: { activeJobs: 1, pendingJobs: 1, waitingJobs: 1, totalJobs: 3 },
    queue: { paused: true, depth: 3, workers: 1 },
  })
  expect((body['queue'] as { oldestAgeMs: number }).oldestAgeMs).toBeGreaterThan(0)
})

describe('with a service away', () => {
  test('Redis: not ready and degraded; spawns are accepted and jobs readable', async () => {
    const away = await openApi({}, { cuttable: 'REDIS_URL' })
    try {
      await away.service?.cut()
      await waitUntil(async () => (await away.call('/readyz')).status === 503)
      expect((await away.json('/readyz')).body).toMatchObject({
        code: 'unavailable',
        checks: { postgres: 'ok', redis: 'away' },
      })
      expect((await away.json('/livez')).status).toBe(200)
      const jobId = await away.spawn()
      expect((await away.json(`/v1/agents/${jobId}`, { as: 'alice' })).body).toMatchObject({ state: 'pending' })
      expect(await away.json('/api/health')).toMatchObject({
        status: 200,
        body: { status: 'degraded', subAgents: { pendingJobs: 1 }, queue: { paused: null, depth: null, workers: 0 } },
      })
      await away.service?.mend()
      await waitUntil(async () => (await away.call('/readyz')).status === 200, { what: 'readiness' })
    } finally {
      await away.close()
    }
  })

  test('Postgres: not ready and down; callers are told to come again', async () => {
    const away = await openApi({}, { cuttable: 'DATABASE_URL' })
    try {
      await away.service?.cut()
      await waitUntil(async () => (await away.call('/readyz')).status === 503)
      expect((await away.json('/readyz')).body).toMatchObject({ checks: { postgres: 'away', redis: 'ok' } })
      expect(await away.json('/api/health')).toMatchObject({
        status: 503,
        body: { status: 'down', subAgents: { totalJobs: null } },
      })
      const refused = await away.call('/v1/agents', { as: 'alice' })
      expect(refused.headers.get('retry-after')).toBe('1')
      expect(await refused.json()).toMatchObject({ status: 503, code: 'unavailable' })
      await away.service?.mend()
      await waitUntil(async () => (await away.call('/v1/agents', { as: 'alice' })).status === 200, {
        what: 'an answer',
      })
    } finally {
      await away.close()
    }
  })
})
