// A Redis that evicts keys, and one that is full.
import { endOf, readJob, untilLiveText } from '@offshoot/testing/agents'
import { startApiProcess, startWorkerProcess } from '@offshoot/testing/processes'
import { says } from '@offshoot/testing/raw-model'
import { openServiceStage, type ServiceStage } from '@offshoot/testing/service-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'

const SLOTS = 5

let stage: ServiceStage

beforeAll(async () => {
  stage = await openServiceStage({ workers: 1, environment: { WORKER_CONCURRENCY: String(SLOTS) } })
})
beforeEach(async () => {
  await setMemory('0', 'noeviction')
})
afterAll(() => stage.close())

async function setMemory(maxmemory: string, policy: string): Promise<void> {
  await stage.redis.command('CONFIG', 'SET', 'maxmemory', maxmemory, 'maxmemory-policy', policy)
}

describe('LOSS-15: an evicting Redis', () => {
  const starts = [
    ['an API', startApiProcess],
    ['a worker', startWorkerProcess],
  ] as const

  test.for(starts)('%s refuses to start on it and says what is allowed', async ([, start]) => {
    await setMemory('104857600', 'allkeys-lru')
    const refused = start(stage.environment)
    await expect(refused).rejects.toThrow('ended (1) before it was ready')
    await expect(refused).rejects.toThrow('maxmemory is 104857600 bytes, maxmemory-policy is allkeys-lru')
    await expect(refused).rejects.toThrow('Run "CONFIG SET maxmemory-policy noeviction"')
  })

  test('without a limit, or where keys stay, they start; CONFIG need not be allowed', async () => {
    const startAndStop = async () => {
      const worker = await startWorkerProcess(stage.environment)
      await worker.stop()
      return worker.exited
    }
    await setMemory('0', 'volatile-ttl')
    expect(await startAndStop()).toBe(0)
    await setMemory('104857600', 'noeviction')
    await stage.redis.command('ACL', 'SETUSER', 'default', '-config')
    expect(await startAndStop()).toBe(0)
    await stage.redis.command('ACL', 'SETUSER', 'default', '+config')
  })
})

test('LOSS-15: a full Redis counts as away; what is accepted meanwhile is delivered when there is room', async () => {
  const { raw, api, runtime } = stage
  const full = Promise.withResolvers<void>()
  raw.answer('running', async (reply) => {
    reply.text('before')
    await full.promise
    reply.text(' and after')
    reply.finish()
  })
  raw.answer('queued', says('delivered'))
  const spawn = (message: string, count: number) =>
    Promise.all(Array.from({ length: count }, () => api.spawn('alice', message)))
  // Every slot is taken, and some deliveries are in Redis already.
  const running = await spawn('running', SLOTS)
  await Promise.all(running.map((id) => untilLiveText(stage, id, 'before')))
  const queuedBefore = await spawn('queued', 3)
  await waitUntil(async () => (await runtime.deliveries.counts('default')).depth === queuedBefore.length)

  await setMemory('1mb', 'noeviction')
  await waitUntil(async () => (await api.readiness()) === 503, { what: 'readiness false' })
  const body: unknown = await (await api.fetch('alice', '/readyz')).json()
  expect(body).toMatchObject({ code: 'unavailable', checks: { postgres: 'ok', redis: 'refusing' } })
  const queuedMeanwhile = await spawn('queued', 10)
  full.resolve()
  for (const id of running)
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'before and after', attempt: 1 })
  // What Redis holds already is worked off.
  for (const id of queuedBefore) expect(await endOf(stage, id)).toMatchObject({ state: 'completed' })
  const triedAgain = { kind: 'delivery', attempts: { gte: 2 } } as const
  await waitUntil(async () => (await runtime.database.outbox.count({ where: triedAgain })) === queuedMeanwhile.length)
  for (const id of queuedMeanwhile) expect(await readJob(stage, id)).toMatchObject({ state: 'pending', attempt: 0 })

  await setMemory('0', 'noeviction')
  await waitUntil(async () => (await api.readiness()) === 200, { what: 'readiness true' })
  for (const id of queuedMeanwhile)
    expect(await endOf(stage, id, 25_000)).toMatchObject({ state: 'completed', attempt: 1 })
  expect(raw.requests('queued')).toHaveLength(queuedBefore.length + queuedMeanwhile.length)
  expect(await stage.restarts()).toEqual([])
})
