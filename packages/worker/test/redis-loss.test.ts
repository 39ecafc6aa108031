// A Redis that is emptied, on a server of this file's own.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { endOf, eventsOf, spawnOf, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { callsTool, type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { type OwnRedis, startOwnRedis } from '@offshoot/testing/own-redis'
import { redisCommand } from '@offshoot/testing/redis-command'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let redis: OwnRedis
let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  redis = await startOwnRedis()
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { environment: { REDIS_URL: redis.url, WORKER_CONCURRENCY: '1' } })
  await stage.putBot('bot')
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
  await redis.stop()
})

/** Lets the reconciler ask Redis about deliveries now, and not in five seconds. */
const deliveredLongAgo = () =>
  stage.runtime.database.$executeRaw`
    update "offshoot"."AgentJob" set "deliveredAt" = clock_timestamp() - interval '10 seconds' where "state" = 'pending'`

test('LOSS-10: after Redis was emptied queued jobs are delivered again and run once, and the running one goes on', async () => {
  const finish = Promise.withResolvers<void>()
  raw.answer('running', async (reply) => {
    reply.text('I run on.')
    await finish.promise
    reply.finish()
  })
  const running = await spawnRoot(stage, 'bot', 'running')
  await untilLiveText(stage, running.id, 'I run on.')
  const queued = []
  for (let at = 0; at < 5; at += 1) {
    raw.answer(`queued ${at}`, says(`answer ${at}`))
    queued.push(await spawnRoot(stage, 'bot', `queued ${at}`))
  }
  await waitUntil(async () => (await stage.runtime.deliveries.counts('default')).depth === 5)

  await redisCommand(redis.url, 'FLUSHALL')
  await deliveredLongAgo()
  await waitUntil(async () => (await stage.runtime.deliveries.counts('default')).depth === 5)
  finish.resolve()

  expect(await endOf(stage, running.id)).toMatchObject({ state: 'completed', result: 'I run on.', attempt: 1 })
  for (const [at, { id }] of queued.entries()) {
    expect(await endOf(stage, id)).toMatchObject({
      state: 'completed',
      result: `answer ${at}`,
      attempt: 1,
      deliverySeq: 2,
    })
    expect(raw.requests(`queued ${at}`)).toHaveLength(1)
    expect(await eventsOf(stage, id)).toEqual(['spawned', 'redelivered', 'ended'])
  }
  expect(raw.requests('running')).toHaveLength(1)
})

test('LOSS-12: a wake whose delivery is lost is found', async () => {
  const finish = Promise.withResolvers<void>()
  raw.answer('parent', callsTool('spawnAgent', spawnOf('bot', 'child')), says('woken'))
  raw.answer('child', async (reply) => {
    await finish.promise
    reply.text('here')
    reply.finish()
  })
  raw.answer('blocker', says('unblocked'))
  const parent = await spawnRoot(stage, 'bot', 'parent')
  await waitUntil(() => raw.requests('child').length === 1)
  // With the queue paused the wake stays in Redis until it is lost there.
  await stage.runtime.deliveries.lane('default').pause()
  finish.resolve()
  await waitUntil(async () => (await stage.runtime.deliveries.counts('default')).depth === 1)
  await redisCommand(redis.url, 'FLUSHALL')
  await deliveredLongAgo()
  expect(await endOf(stage, parent.id)).toMatchObject({
    state: 'completed',
    result: 'woken',
    attempt: 2,
    deliverySeq: 3,
  })
  expect(raw.requests('parent')).toHaveLength(2)
})
