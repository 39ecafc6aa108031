// What a check says of a job that waits for a worker: its place, and what keeps workers from it.
import { claimNext, claimOf, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { loadConfig } from '../src/config.ts'
import type { AgentJob } from '../src/db/agent-jobs.ts'
import { insertWorker } from '../src/db/workers.ts'
import { newId } from '../src/ids.ts'
import { checkAgent } from '../src/operations/check-agent.ts'
import { handBack } from '../src/operations/hand-back.ts'
import { startReconciler } from '../src/operations/reconcile.ts'
import { openRuntime } from '../src/runtime.ts'
import { checkAgentTool } from '../src/tools/job-tools.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ environment: { LOG_LEVEL: 'silent' } })
  await stage.putBot('writer')
})
afterAll(() => stage.close())

const reader = { userId: 'alice', admin: true }
const check = (job: Pick<AgentJob, 'id'>, runtime = stage.runtime) =>
  checkAgent(runtime, reader, { jobId: job.id, includePartial: false, waitSeconds: 0 })

/** Spawns in a lane and waits for the delivery. */
async function queued(lane: string, userId = 'alice', priority?: number): Promise<AgentJob> {
  const job = await spawnJob(stage.runtime, userId, { lane, ...(priority === undefined ? {} : { priority }) })
  await waitUntil(async () => (await check(job)).progress?.queuePosition)
  return job
}

const place = async (job: Pick<AgentJob, 'id'>) => (await check(job)).progress?.queuePosition

const runWorker = (lane: string) =>
  insertWorker(stage.runtime.database, { id: newId(), host: 'h', pid: 1, lanes: ['default', lane] })

test('STUCK-8: while no worker serves the lane, check says so, to the model too', async () => {
  const job = await queued('idle')
  const note = 'No worker is running for lane "idle".'
  expect((await check(job)).progress).toEqual({ step: 0, maxSteps: 25, queuePosition: 1, note })
  const tool = checkAgentTool(stage.runtime, () => ({ reader, actorId: 'alice' }), { canReadOn: false })
  const told = await tool.toModelOutput?.({ toolCallId: 'c', input: Object.create(null), output: await check(job) })
  expect(told).toMatchObject({ type: 'json', value: { state: 'pending', progress: { queuePosition: 1, note } } })

  const { id } = await runWorker('idle')
  expect((await check(job)).progress).toEqual({ step: 0, maxSteps: 25, queuePosition: 1 })
  const { worker } = stage.runtime.database
  await worker.update({ where: { id }, data: { drainingAt: new Date() } })
  expect((await check(job)).progress).toMatchObject({ note })
  await worker.update({ where: { id }, data: { drainingAt: null, seenAt: new Date(Date.now() - 60_000) } })
  expect((await check(job)).progress).toMatchObject({ note })
})

test('STUCK-8: a job that was handed back says it, too; one that waits for a child does not', async () => {
  const { id } = await queued('left')
  const run = await claimNext(stage.runtime, id)
  expect((await check(run)).progress).not.toHaveProperty('note')
  await handBack(stage.runtime, run, claimOf(run), 'handed-back')
  expect(await check(run)).toMatchObject({
    state: 'running',
    progress: { note: 'No worker is running for lane "left".' },
  })
  const again = await claimNext(stage.runtime, id)
  await spawnChild(stage.runtime, again, { mode: 'sync', lane: 'left' })
  expect((await check(again)).progress).toEqual({ step: 0, maxSteps: 25 })
})

test('the place in the queue counts the deliveries of the lane that are taken before', async () => {
  const first = await queued('busy', 'eve', 0)
  const behind = await queued('busy', 'bob', 50)
  const before = await queued('busy', 'carol', 0)
  const woken = await claimNext(stage.runtime, (await queued('busy', 'dora', 90)).id)
  await stage.runtime.deliveries.remove('busy', woken.id, 1)
  await handBack(stage.runtime, woken, claimOf(woken), 'handed-back')
  await queued('elsewhere')
  await waitUntil(async () => (await place(woken)) === 1)
  expect(await Promise.all([woken, first, before, behind].map(place))).toEqual([1, 2, 3, 4])
  await stage.runtime.deliveries.remove('busy', first.id, 1)
  expect(await Promise.all([woken, first, before, behind].map(place))).toEqual([1, undefined, 2, 3])
})

test('STUCK-20: a paused queue shows in check, and the queue-time limit holds', async () => {
  await runWorker('paused')
  const job = await queued('paused')
  await stage.runtime.deliveries.lane('paused').pause()
  expect((await check(job)).progress).toMatchObject({ queuePosition: 1, note: 'The queue of lane "paused" is paused.' })
  await stage.runtime.database.worker.deleteMany()
  expect((await check(job)).progress).toMatchObject({
    note: 'No worker is running for lane "paused". The queue of lane "paused" is paused.',
  })
  await stage.runtime.database.$executeRaw`
    update "offshoot"."AgentJob" set "createdAt" = clock_timestamp() - interval '2 hours' where "id" = ${job.id}`
  const reconciler = startReconciler(stage.runtime, { holder: 'r' })
  try {
    await waitUntil(async () => (await check(job)).state === 'failed')
    expect(await check(job)).toMatchObject({ reason: 'timeout_queue' })
  } finally {
    await reconciler.stop()
  }
})

test('with Redis away check answers, and says what the job waits for', async () => {
  await runWorker('cut')
  const job = await queued('cut')
  const config = loadConfig({ ...stage.environment, REDIS_URL: 'redis://127.0.0.1:1' })
  const runtime = openRuntime({ ...stage.runtime, config, name: 'cut' })
  try {
    expect((await check(job, runtime)).progress).toEqual({
      step: 0,
      maxSteps: 25,
      note: 'The queue does not answer; the job is delivered when it does.',
    })
  } finally {
    await runtime.close()
  }
})
