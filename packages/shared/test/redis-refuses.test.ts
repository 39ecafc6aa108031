// A Redis that evicts, or refuses writes or subscriptions, on a server of this file's own.
import { claimNext, claimOf, COMPLETED, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { type OwnRedis, startOwnRedis } from '@offshoot/testing/own-redis'
import { redisCommand } from '@offshoot/testing/redis-command'
import { startTcpProxy } from '@offshoot/testing/tcp-proxy'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { ConfigError, loadConfig } from '../src/config.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { startReconciler } from '../src/operations/reconcile.ts'
import { refuseEvictingRedis } from '../src/queue/redis-eviction.ts'
import { withLimit } from '../src/with-limit.ts'

let redis: OwnRedis
let stage: TestStage

beforeAll(async () => {
  redis = await startOwnRedis()
  stage = await openTestStage({ environment: { REDIS_URL: redis.url, LOG_LEVEL: 'silent' } })
  await stage.putBot('writer')
})
afterEach(() => setMemory('0', 'noeviction'))
afterAll(async () => {
  await stage.close()
  await redis.stop()
})

async function setMemory(maxmemory: string, policy: string): Promise<void> {
  await redisCommand(redis.url, 'CONFIG', 'SET', 'maxmemory', maxmemory, 'maxmemory-policy', policy)
}

test('LOSS-15: a Redis that would evict keys is refused with what is wrong, allowed and to do', async () => {
  const { config, runtime } = stage
  await refuseEvictingRedis(config, runtime.logger)
  await setMemory('104857600', 'noeviction')
  await refuseEvictingRedis(config, runtime.logger)
  await setMemory('0', 'allkeys-lru')
  await refuseEvictingRedis(config, runtime.logger)
  await setMemory('104857600', 'volatile-ttl')
  await expect(refuseEvictingRedis(config, runtime.logger)).rejects.toThrow(
    `Redis at ${new URL(redis.url).host} evicts keys when its memory is full: maxmemory is 104857600 bytes, maxmemory-policy is volatile-ttl.
Deliveries and live streams would be dropped without a word. Allowed are maxmemory-policy noeviction, or no maxmemory.
Run "CONFIG SET maxmemory-policy noeviction", and set it in redis.conf, or in the settings of a managed Redis.`,
  )
})

test('LOSS-15: a Redis that is away is asked when it is there', async () => {
  await setMemory('104857600', 'allkeys-lru')
  const proxy = await startTcpProxy(redis.url)
  try {
    proxy.silence()
    const config = loadConfig({ ...stage.environment, REDIS_URL: proxy.url })
    const asked = refuseEvictingRedis(config, stage.runtime.logger).then(
      () => 'keeps its keys',
      (error: unknown) => error,
    )
    await expect(withLimit(asked, 500)).rejects.toThrow('no answer within 500 ms')
    proxy.heal()
    proxy.cut()
    expect(await asked).toBeInstanceOf(ConfigError)
  } finally {
    await proxy.close()
  }
})

test('LOSS-15: a full Redis counts as away until it takes a write again', async () => {
  const { signals, database, deliveries } = stage.runtime
  await waitUntil(() => signals.pulse.isOk())
  const running = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice')).id)
  await setMemory('1mb', 'noeviction')
  await waitUntil(() => !signals.pulse.isOk(), { within: 2_000 })
  expect(signals.pulse.state()).toBe('refusing')
  const queued = await spawnJob(stage.runtime, 'alice')
  expect(await finishAgent(stage.runtime, running, { guard: claimOf(running), ending: COMPLETED })).toMatchObject({
    state: 'completed',
  })
  expect(await deliveries.lane('default').getJob(`${queued.id}-1`)).toBeUndefined()
  await setMemory('0', 'noeviction')
  await waitUntil(() => signals.pulse.isOk(), { within: 2_000 })
  const reconciler = startReconciler(stage.runtime, { holder: 'r' })
  await waitUntil(async () => (await database.outbox.count({ where: { doneAt: null } })) === 0)
  await reconciler.stop()
})

test('STUCK-4: subscriptions that Redis refuses end nothing, and stand again when it takes them', async () => {
  const { signals } = stage.runtime
  const heard: string[] = []
  await signals.subscribe('job:1', (message) => heard.push(message))
  await waitUntil(() => signals.isReachable())
  // Cuts the connection that listens, and refuses its next subscriptions.
  await redisCommand(redis.url, 'ACL', 'SETUSER', 'default', 'resetchannels')
  await waitUntil(() => !signals.isReachable())
  await signals.subscribe('job:2', (message) => heard.push(message))
  expect(signals.pulse.state()).toBe('ok')
  await redisCommand(redis.url, 'ACL', 'SETUSER', 'default', 'allchannels')
  await waitUntil(() => signals.isReachable(), { within: 3_000 })
  signals.publish('job:1', 'first')
  signals.publish('job:2', 'second')
  await waitUntil(() => heard.length === 2)
})
