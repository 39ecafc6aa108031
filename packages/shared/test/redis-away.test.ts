// Redis refuses, or is silent: what was accepted is in Postgres, answers come in time, and what Redis missed is made up.
import { readJob } from '@offshoot/testing/agents'
import { claimNext, claimOf, COMPLETED, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { redisCommand } from '@offshoot/testing/redis-command'
import { startTcpProxy, type TcpProxy } from '@offshoot/testing/tcp-proxy'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { loadConfig } from '../src/config.ts'
import { checkAgent } from '../src/operations/check-agent.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { followAgent } from '../src/operations/follow-agent.ts'
import { type Reconciler, startReconciler } from '../src/operations/reconcile.ts'
import { openRuntime, type Runtime } from '../src/runtime.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ environment: { LOG_LEVEL: 'silent' } })
  await stage.putBot('writer')
})
afterAll(() => stage.close())

let open: Runtime[] = []
let proxy: TcpProxy
let reconciler: Reconciler | undefined
beforeEach(async () => {
  proxy = await startTcpProxy(stage.config.REDIS_URL ?? '')
})
afterEach(async () => {
  await reconciler?.stop()
  reconciler = undefined
  await Promise.all(open.map((runtime) => runtime.close()))
  open = []
  await proxy.close()
})

/** A process of its own, as far as connections go, that reaches Redis at `redisUrl`. */
function runtimeAt(redisUrl: string): Runtime {
  const config = loadConfig({ ...stage.environment, REDIS_URL: redisUrl })
  const runtime = openRuntime({ ...stage.runtime, config, name: 'other' })
  open.push(runtime)
  return runtime
}

async function timed<T>(work: Promise<T>): Promise<{ value: T; tookMs: number }> {
  const before = performance.now()
  const value = await work
  return { value, tookMs: performance.now() - before }
}

const delivery = (jobId: string) => stage.runtime.deliveries.lane('default').getJob(`${jobId}-1`)
const check = (runtime: Runtime, jobId: string, waitSeconds = 0) =>
  checkAgent(runtime, { userId: 'alice', admin: false }, { jobId, includePartial: true, waitSeconds })

test('LOSS-9: with Redis unreachable a spawn is accepted within 1 s, and delivered by a reconciler later', async () => {
  const { value: job, tookMs } = await timed(spawnJob(runtimeAt('redis://127.0.0.1:1'), 'alice'))
  expect(tookMs).toBeLessThan(1_000)
  expect(await check(stage.runtime, job.id)).toMatchObject({ state: 'pending' })
  expect(await delivery(job.id)).toBeUndefined()
  reconciler = startReconciler(stage.runtime, { holder: 'r' })
  expect(await waitUntil(() => delivery(job.id))).toMatchObject({ name: 'forge/writer' })
  await waitUntil(
    async () => (await stage.runtime.database.outbox.count({ where: { jobId: job.id, doneAt: null } })) === 0,
  )
})

test('LOSS-9: with Redis silent a spawn is accepted within 1 s, and its delivery comes when Redis answers again', async () => {
  const runtime = runtimeAt(proxy.url)
  await waitUntil(() => runtime.signals.isReachable())
  proxy.silence()
  const { value: job, tookMs } = await timed(spawnJob(runtime, 'alice'))
  expect(tookMs).toBeLessThan(1_000)
  await waitUntil(async () => (await stage.runtime.database.outbox.findFirst({ where: { jobId: job.id } }))?.lastError)
  expect(await delivery(job.id)).toBeUndefined()
  proxy.heal()
  proxy.cut()
  reconciler = startReconciler(runtime, { holder: 'r' })
  await waitUntil(() => delivery(job.id))
})

test('STUCK-9: a connection that the network dropped without a word is replaced, and deliveries go out again', async () => {
  const runtime = runtimeAt(proxy.url)
  await waitUntil(() => runtime.signals.isReachable())
  proxy.silence()
  const job = await spawnJob(runtime, 'alice')
  proxy.heal()
  reconciler = startReconciler(runtime, { holder: 'r' })
  expect(await waitUntil(() => delivery(job.id), { within: 20_000 })).toMatchObject({ name: 'forge/writer' })
})

test('STUCK-9: what is told again and again while Redis is away goes there once when it is back', async () => {
  const runtime = runtimeAt(proxy.url)
  const { database } = stage.runtime
  await waitUntil(() => runtime.signals.isReachable())
  proxy.silence()
  proxy.cut()
  await waitUntil(() => !runtime.signals.pulse.isOk())
  const job = await spawnJob(runtime, 'alice')
  const attempts = async () => (await database.outbox.findFirstOrThrow({ where: { jobId: job.id } })).attempts
  await waitUntil(async () => (await attempts()) === 1)
  for (let tries = 2; tries <= 6; tries += 1) {
    await database.outbox.updateMany({ where: { jobId: job.id }, data: { nextAttemptAt: new Date(0) } })
    await runtime.outbox.dispatchDue()
    await waitUntil(async () => (await attempts()) === tries)
  }
  proxy.heal()
  proxy.cut()
  await waitUntil(() => delivery(job.id))
  // Behind all that waited for this connection.
  await runtime.deliveries.counts('default')
  const queue = stage.runtime.deliveries.lane('default')
  const events = await redisCommand(stage.config.REDIS_URL ?? '', 'xrange', queue.toKey('events'), '-', '+')
  const ofJob = (Array.isArray(events) ? events : []).map(String).filter((event) => event.includes(job.id))
  expect(ofJob).toContainEqual(expect.stringContaining('added'))
  expect(ofJob).not.toContainEqual(expect.stringContaining('duplicated'))
})

test('STUCK-3: deadlines fire while Redis is silent', async () => {
  const runtime = runtimeAt(proxy.url)
  await waitUntil(() => runtime.signals.isReachable())
  const [late, pending] = [await spawnJob(runtime, 'alice'), await spawnJob(runtime, 'alice')]
  proxy.silence()
  // A delivery that is due to be looked at in Redis, which does not answer.
  const { database } = stage.runtime
  const pastGrace = new Date(Date.now() - 10_000)
  await database.agentJob.update({ where: { id: pending.id }, data: { deliveredAt: pastGrace } })
  reconciler = startReconciler(runtime, { holder: 'r' })
  await waitUntil(async () => (await database.lease.count()) === 1)
  // Two rounds later it must still be at work.
  await database.agentJob.update({ where: { id: late.id }, data: { deadlineAt: pastGrace } })
  await waitUntil(async () => (await readJob(stage, late.id)).state === 'failed', { within: 5_000 })
  await database.agentJob.update({ where: { id: pending.id }, data: { deadlineAt: pastGrace } })
  await waitUntil(async () => (await readJob(stage, pending.id)).state === 'failed', { within: 5_000 })
  expect(await readJob(stage, late.id)).toMatchObject({ reason: 'timeout_total' })
})

test('a check of a running job answers while Redis is silent', async () => {
  const runtime = runtimeAt(proxy.url)
  const job = await claimNext(runtime, (await spawnJob(runtime, 'alice')).id)
  await waitUntil(() => runtime.signals.isReachable())
  proxy.silence()
  const { value, tookMs } = await timed(check(runtime, job.id))
  expect(value).toMatchObject({ state: 'running', messages: [{ role: 'user' }] })
  expect(tookMs).toBeLessThan(2_000)
})

test('COST-6: a waiting check answers at the end of the job, whose signal was lost', async () => {
  const runtime = runtimeAt(proxy.url)
  const job = await claimNext(runtime, (await spawnJob(runtime, 'alice')).id)
  await waitUntil(() => runtime.signals.isReachable())
  proxy.silence()
  const answer = check(runtime, job.id, 60)
  await finishAgent(stage.runtime, job, { guard: claimOf(job), ending: COMPLETED })
  const { value, tookMs } = await timed(answer)
  expect(value).toMatchObject({ state: 'completed', result: 'done' })
  expect(tookMs).toBeLessThan(7_000)
})

test('STUCK-13: a viewer gets the end of a job from its row while Redis is silent', async () => {
  const runtime = runtimeAt(proxy.url)
  const job = await claimNext(runtime, (await spawnJob(runtime, 'alice')).id)
  await waitUntil(() => runtime.signals.isReachable())
  proxy.silence()
  const types: string[] = []
  const viewing = (async () => {
    for await (const { chunk } of followAgent(runtime, job.id)) types.push(chunk.type)
  })()
  await finishAgent(stage.runtime, job, { guard: claimOf(job), ending: COMPLETED })
  const { tookMs } = await timed(viewing)
  expect(types).toEqual(['finish'])
  expect(tookMs).toBeLessThan(15_000)
})

test('STUCK-14: a runtime closes within 5 s while Redis is silent, or was never there', async () => {
  for (const url of [proxy.url, 'redis://127.0.0.1:1']) {
    const runtime = runtimeAt(url)
    await spawnJob(runtime, 'alice')
    if (url === proxy.url) await waitUntil(() => runtime.signals.isReachable())
    proxy.silence()
    await spawnJob(runtime, 'alice')
    const { tookMs } = await timed(runtime.close())
    expect([url, tookMs < 5_000]).toEqual([url, true])
    open = open.filter((each) => each !== runtime)
  }
})
