// What the reconciler repairs, with no worker at all: each case is brought about by hand, as a crash or a lost message
// would, and put right within a second or two.
import { eventsOf, readJob } from '@offshoot/testing/agents'
import { claimNext, claimOf, COMPLETED, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { UnrecoverableError, Worker } from 'bullmq'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import type { AgentJob } from '../src/db/agent-jobs.ts'
import { storeAbortWish, storeWaitingJob } from '../src/db/agent-jobs.ts'
import { sql } from '../src/db/database.ts'
import { takeLease } from '../src/db/leases.ts'
import { heartbeat, holdPresenceLock, insertWorker } from '../src/db/workers.ts'
import { newId } from '../src/ids.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { MAX_CRASHES } from '../src/operations/hand-back.ts'
import { type Reconciler, startReconciler } from '../src/operations/reconcile.ts'
import { lockTree, transact } from '../src/operations/transact.ts'
import { queueName } from '../src/queue/delivery-queue.ts'

let stage: TestStage
let started: Reconciler[] = []
beforeAll(async () => {
  stage = await openTestStage({ environment: { MAX_ACTIVE_JOBS_PER_USER: '1000', LOG_LEVEL: 'silent' } })
  await stage.putBot('writer')
})
afterEach(async () => {
  await Promise.all(started.map((reconciler) => reconciler.stop()))
  started = []
})
afterAll(() => stage.close())

function reconcile(holder = 'r1'): Reconciler {
  const reconciler = startReconciler(stage.runtime, { holder })
  started.push(reconciler)
  return reconciler
}

const spawned = (more: Parameters<typeof spawnJob>[2] = {}) => spawnJob(stage.runtime, 'alice', more)
const claimed = async (workerId?: string) => claimNext(stage.runtime, (await spawned()).id, workerId)

/** Moves a stored instant of a job into the past. */
async function shift(jobId: string, column: 'deliveredAt' | 'deadlineAt' | 'createdAt' | 'waitUntil', seconds: number) {
  await stage.runtime.database.$executeRawUnsafe(
    `update "offshoot"."AgentJob" set "${column}" = coalesce("${column}", clock_timestamp()) - make_interval(secs => $1) where "id" = $2`,
    seconds,
    jobId,
  )
}

/** Sets a job's deadline so many milliseconds into the past. */
async function deadlineWas(jobId: string, agoMs: number): Promise<void> {
  await stage.runtime.database.$executeRaw`
    update "offshoot"."AgentJob" set "deadlineAt" = clock_timestamp() - make_interval(secs => ${agoMs / 1_000})
    where "id" = ${jobId}`
}

function jobUntil(jobId: string, holds: (job: AgentJob) => boolean): Promise<AgentJob> {
  return waitUntil(
    async () => {
      const job = await readJob(stage, jobId)
      return holds(job) && job
    },
    { within: 10_000, what: `what is expected of job ${jobId}` },
  )
}

/** Resolves once everything that had to be told of a job is told. */
async function told(jobId: string): Promise<void> {
  await waitUntil(async () => (await stage.runtime.database.outbox.count({ where: { jobId, doneAt: null } })) === 0)
}

const delivery = (job: Pick<AgentJob, 'id' | 'deliverySeq'>) =>
  stage.runtime.deliveries.lane('default').getJob(`${job.id}-${job.deliverySeq}`)

function worker() {
  return insertWorker(stage.runtime.database, { id: newId(), host: 'h', pid: 1, lanes: ['default'] })
}

test('STUCK-7: the job of a worker whose session is gone goes back to the queue, with the next delivery', async () => {
  const { id } = await worker()
  const held = await claimed(id)
  reconcile()
  const back = await jobUntil(held.id, (job) => job.state === 'pending')
  expect(back).toMatchObject({ claimToken: null, workerId: null, deliverySeq: 2, attempt: 1, crashes: 1 })
  expect(await eventsOf(stage, held.id)).toEqual(['spawned', 'worker-lost'])
  expect(await waitUntil(() => delivery(back))).toMatchObject({ priority: 1 })
  await expect.poll(() => stage.runtime.database.worker.count({ where: { id } })).toBe(0)
})

test('STUCK-7: the jobs of a lost worker go back in one transaction, but for those that have to end', async () => {
  const { database } = stage.runtime
  const { id } = await worker()
  const jobs = await Promise.all(Array.from({ length: 30 }, () => claimed(id)))
  const [unwanted = '', deadly = '', ...others] = jobs.map((job) => job.id)
  await storeAbortWish(database, [unwanted], { by: 'alice', reason: 'aborted_by_user', text: null })
  await database.agentJob.update({ where: { id: deadly }, data: { crashes: 4 } })
  reconcile()
  for (const other of others)
    expect(await jobUntil(other, (job) => job.state === 'pending')).toMatchObject({ deliverySeq: 2, crashes: 1 })
  expect(await jobUntil(unwanted, (job) => job.state === 'aborted')).toMatchObject({ reason: 'aborted_by_user' })
  expect(await jobUntil(deadly, (job) => job.state === 'failed')).toMatchObject({ reason: 'worker_crash', crashes: 5 })
  const transactions = await database.$queryRaw<unknown[]>(sql`
    select distinct xmin::text from "offshoot"."AgentEvent" where "kind" = 'worker-lost' and "jobId" = any(${others}::text[])`)
  expect(transactions).toHaveLength(1)
})

test('STUCK-7: of a lost worker’s jobs none waits for another one whose tree is locked', async () => {
  const { id } = await worker()
  const [locked, ...others] = [await claimed(id), await claimed(id), await claimed(id), await claimed(id)]
  const held = Promise.withResolvers<void>()
  const lock = transact(stage.runtime, async (tx) => {
    await lockTree(tx, locked?.rootJobId ?? '')
    await held.promise
  })
  reconcile()
  for (const other of others) await jobUntil(other.id, (job) => job.state === 'pending')
  expect(await readJob(stage, locked?.id ?? '')).toMatchObject({ state: 'running' })
  held.resolve()
  await lock
  await jobUntil(locked?.id ?? '', (job) => job.state === 'pending')
})

test('STUCK-7 LOSS-12: a job whose tree somebody holds for long keeps no other from its repair', async () => {
  const { database } = stage.runtime
  const { id: workerId } = await worker()
  const [due, held] = [await spawned(), await claimed(workerId)]
  const [waiting, lost, late] = [await claimed(), await spawned(), await spawned()]
  await told(lost.id)
  await storeWaitingJob(database, claimOf(waiting), { on: 'retry', forMs: 0 })
  await shift(due.id, 'deadlineAt', 7_200)
  await stage.runtime.deliveries.remove('default', lost.id, 1)
  await shift(lost.id, 'deliveredAt', 10)
  const over = Promise.withResolvers<void>()
  const holder = database.$transaction(
    async (tx) => {
      for (const { rootJobId } of [due, held])
        await tx.$queryRaw`select 1 from "offshoot"."AgentTree" where "rootJobId" = ${rootJobId} for update`
      await tx.$queryRaw`set local idle_in_transaction_session_timeout = 0`
      await over.promise
    },
    { timeout: 60_000 },
  )
  reconcile()
  await jobUntil(waiting.id, (job) => job.state === 'pending')
  await jobUntil(lost.id, (job) => job.deliverySeq === 2)
  await shift(late.id, 'deadlineAt', 7_200)
  await jobUntil(late.id, (job) => job.state === 'failed')
  await shift(lost.id, 'deadlineAt', 7_200)
  await jobUntil(lost.id, (job) => job.state === 'failed')
  expect(await readJob(stage, due.id)).toMatchObject({ state: 'pending' })
  expect(await readJob(stage, held.id)).toMatchObject({ state: 'running' })
  over.resolve()
  await holder
  await jobUntil(due.id, (job) => job.state === 'failed')
  await jobUntil(held.id, (job) => job.state === 'pending')
})

test('STUCK-7 LOSS-10: a pending job that cannot be delivered again keeps no other from it', async () => {
  const { database } = stage.runtime
  const [refused, other] = [await spawned(), await spawned()]
  await Promise.all([told(refused.id), told(other.id)])
  for (const job of [refused, other]) await stage.runtime.deliveries.remove('default', job.id, 1)
  await shift(refused.id, 'deliveredAt', 20)
  await shift(other.id, 'deliveredAt', 10)
  await database.$executeRawUnsafe(`
    create function "offshoot"."refuse"() returns trigger language plpgsql as $$ begin raise exception 'never'; end $$`)
  await database.$executeRawUnsafe(`
    create trigger "refuse" before update on "offshoot"."AgentJob" for each row
    when (new."id" = '${refused.id}' and new."deliverySeq" > old."deliverySeq") execute function "offshoot"."refuse"()`)
  try {
    reconcile()
    await jobUntil(other.id, (job) => job.deliverySeq === 2)
    expect(await readJob(stage, refused.id)).toMatchObject({ state: 'pending', deliverySeq: 1 })
  } finally {
    await database.$executeRawUnsafe('drop trigger "refuse" on "offshoot"."AgentJob"')
  }
  await jobUntil(refused.id, (job) => job.deliverySeq === 2)
})

test('STUCK-7 STUCK-18: what a worker claims that was declared lost and does not know it goes back, and is no crash', async () => {
  const { id } = await spawned()
  reconcile()
  for (let claims = 1; claims <= MAX_CRASHES + 1; claims += 1) {
    await claimNext(stage.runtime, id, 'never-registered')
    const back = await jobUntil(id, (job) => job.claimToken === null)
    expect(back).toMatchObject({ state: 'pending', deliverySeq: claims + 1, attempt: claims, crashes: 0 })
  }
})

test('STATE-14: a worker that lives keeps its job; one that is frozen with its lock does not', async () => {
  const { database, config, logger } = stage.runtime
  const [living, frozen] = [await worker(), await worker()]
  const locks = await Promise.all(
    [living, frozen].map((each) =>
      holdPresenceLock({ databaseUrl: config.DATABASE_URL, worker: each, logger, onRegained: () => undefined }),
    ),
  )
  const [kept, lost] = [await claimed(living.id), await claimed(frozen.id)]
  const beat = setInterval(() => void heartbeat(database, living.id).catch(() => undefined), config.WORKER_HEARTBEAT_MS)
  reconcile()
  await jobUntil(lost.id, (job) => job.state === 'pending')
  expect(await readJob(stage, kept.id)).toMatchObject({ state: 'running', claimToken: kept.claimToken })
  // Its row goes right after its jobs.
  await expect.poll(() => heartbeat(database, frozen.id)).toBeNull()
  expect(await heartbeat(database, living.id)).toMatchObject([
    { id: kept.id, claimToken: kept.claimToken, abortRequested: false },
  ])
  clearInterval(beat)
  await Promise.all(locks.map((lock) => lock.close()))
  await jobUntil(kept.id, (job) => job.state === 'pending')
})

test('STUCK-7: a job of a lost worker that somebody wants to end does not go round again', async () => {
  const held = await claimed('gone')
  await storeAbortWish(stage.runtime.database, [held.id], { by: 'alice', reason: 'aborted_by_user', text: null })
  reconcile()
  await jobUntil(held.id, (job) => job.state === 'aborted')
  expect(await eventsOf(stage, held.id)).toEqual(['spawned', 'worker-lost', 'ended'])
})

test('LOSS-10: a pending job whose delivery is gone from Redis is delivered again, under the next number', async () => {
  const [lost, there] = [await spawned(), await spawned()]
  await Promise.all([told(lost.id), told(there.id)])
  await stage.runtime.deliveries.remove('default', lost.id, 1)
  for (const job of [lost, there]) await shift(job.id, 'deliveredAt', 10)
  reconcile()
  const again = await jobUntil(lost.id, (job) => job.deliverySeq === 2)
  expect(await waitUntil(() => delivery(again))).toMatchObject({ priority: again.priority, name: 'forge/writer' })
  expect(await eventsOf(stage, lost.id)).toEqual(['spawned', 'redelivered'])
  const asked = await jobUntil(there.id, (job) => job.askedAt !== null)
  expect(asked.deliverySeq).toBe(1)
  // Since when they wait is as it was.
  for (const job of [again, asked]) expect(Date.now() - job.deliveredAt.getTime()).toBeGreaterThan(10_000)
})

test('STATE-15: a delivery that BullMQ has ended by itself is made anew', async () => {
  const { config } = stage.runtime
  const job = await spawned({ lane: 'broken' })
  const queue = stage.runtime.deliveries.lane('broken')
  const consumer = new Worker(
    queueName('broken'),
    () => {
      throw new UnrecoverableError('job stalled more than allowable limit')
    },
    { connection: { url: config.REDIS_URL ?? '' }, prefix: config.QUEUE_PREFIX },
  )
  await waitUntil(async () => (await queue.getJobState(`${job.id}-1`)) === 'failed')
  await consumer.close()
  await shift(job.id, 'deliveredAt', 10)
  reconcile()
  expect(await jobUntil(job.id, (row) => row.deliverySeq === 2)).toMatchObject({ state: 'pending' })
  expect(await waitUntil(() => stage.runtime.deliveries.isUnderway('broken', job.id, 2))).toBe(true)
})

test('a wait whose time is over is woken', async () => {
  const waiting = await claimed()
  await storeWaitingJob(stage.runtime.database, claimOf(waiting), { on: 'retry', forMs: 60_000 })
  await shift(waiting.id, 'waitUntil', 120)
  reconcile()
  const woken = await jobUntil(waiting.id, (job) => job.state === 'pending')
  expect(woken).toMatchObject({ waitingOn: null, waitUntil: null, deliverySeq: 2 })
  expect(await eventsOf(stage, waiting.id)).toEqual(['spawned', 'woken'])
})

test('LOSS-12 STUCK-2: a wait for children whose wake was lost, or whose child was removed, is woken', async () => {
  const { database } = stage.runtime
  const [lostWake, removed, live] = [await claimed(), await claimed(), await claimed()]
  const ended = await spawnChild(stage.runtime, lostWake, { mode: 'sync' })
  await database.agentJob.update({ where: { id: ended.id }, data: { state: 'completed' } })
  const gone = await spawnChild(stage.runtime, removed, { mode: 'sync' })
  await database.agentJob.delete({ where: { id: gone.id } })
  await spawnChild(stage.runtime, live, { mode: 'sync' })
  reconcile()
  for (const parent of [lostWake, removed]) await jobUntil(parent.id, (job) => job.state === 'pending')
  expect(await readJob(stage, live.id)).toMatchObject({ state: 'running', waitingOn: 'children' })
})

test('STUCK-8: with no worker at all the deadline of a queued job and of a waiting one still fires', async () => {
  const [queued, waiting] = [await spawned({ timeoutSeconds: 60 }), await claimed()]
  const child = await spawnChild(stage.runtime, waiting, { mode: 'sync' })
  for (const job of [queued, waiting]) await shift(job.id, 'deadlineAt', 7_200)
  reconcile()
  for (const job of [queued, waiting]) {
    const ended = await jobUntil(job.id, (row) => row.state === 'failed')
    expect(ended).toMatchObject({ reason: 'timeout_total', error: 'The job reached its total time limit.' })
  }
  expect(await jobUntil(child.id, (row) => row.state === 'aborted')).toMatchObject({ reason: 'aborted_by_parent' })
  await told(queued.id)
  expect(await delivery(queued)).toBeUndefined()
})

test('STUCK-8: the queue-time limit fires before the first claim, never after it', async () => {
  const [queued, claimedBefore] = [await spawned(), await claimed('gone')]
  reconcile()
  await jobUntil(claimedBefore.id, (job) => job.state === 'pending')
  for (const job of [queued, claimedBefore]) await shift(job.id, 'createdAt', 7_200)
  const ended = await jobUntil(queued.id, (job) => job.state === 'failed')
  expect(ended).toMatchObject({
    reason: 'timeout_queue',
    error: 'No worker took the job within its queue-time limit.',
    attempt: 0,
  })
  expect(await readJob(stage, claimedBefore.id)).toMatchObject({ state: 'pending', attempt: 1 })
})

test('LOSS-6: a parent is woken by a child that timed out in the queue', async () => {
  const parent = await claimed()
  const child = await spawnChild(stage.runtime, parent, { mode: 'sync' })
  await shift(child.id, 'createdAt', 7_200)
  reconcile()
  await jobUntil(child.id, (job) => job.reason === 'timeout_queue')
  expect(await readJob(stage, parent.id)).toMatchObject({ state: 'pending', deliverySeq: 2 })
})

test('a job that its worker holds is left alone when it has to end: the worker ends it', async () => {
  const { database, config, logger } = stage.runtime
  const living = await worker()
  const options = { databaseUrl: config.DATABASE_URL, worker: living, logger, onRegained: () => undefined }
  const lock = await holdPresenceLock(options)
  const [held, queued] = [await claimed(living.id), await spawned()]
  await shift(queued.id, 'deadlineAt', 7_200)
  // Less than a lock's length ago.
  await deadlineWas(held.id, config.WORKER_LOCK_MS - 4_000)
  await storeAbortWish(database, [held.id], { by: null, reason: 'aborted_by_user', text: null })
  reconcile()
  await jobUntil(queued.id, (job) => job.state === 'failed')
  expect(await readJob(stage, held.id)).toMatchObject({ state: 'running', claimToken: held.claimToken })
  await finishAgent(stage.runtime, held, { guard: claimOf(held), ending: COMPLETED })
  await lock.close()
})

test('STUCK-7: a job that its worker could not end a lock’s length after its deadline, or after a wish, is taken from it', async () => {
  const { database, config, logger } = stage.runtime
  const living = await worker()
  const options = { databaseUrl: config.DATABASE_URL, worker: living, logger, onRegained: () => undefined }
  const lock = await holdPresenceLock(options)
  const beat = setInterval(() => void heartbeat(database, living.id).catch(() => undefined), config.WORKER_HEARTBEAT_MS)
  const [late, unwanted, healthy] = [await claimed(living.id), await claimed(living.id), await claimed(living.id)]
  const child = await spawnChild(stage.runtime, late, { mode: 'async' })
  await deadlineWas(late.id, config.WORKER_LOCK_MS)
  await storeAbortWish(database, [unwanted.id], { by: 'alice', reason: 'aborted_by_user', text: 'enough' })
  await database.$executeRaw`
    update "offshoot"."AgentJob" set "abortRequestedAt" = "abortRequestedAt" - make_interval(secs => ${config.WORKER_LOCK_MS / 1000})
    where "id" = ${unwanted.id}`
  reconcile()
  expect(await jobUntil(late.id, (job) => job.state === 'failed')).toMatchObject({
    reason: 'timeout_total',
    error: 'The job reached its total time limit.',
    claimToken: null,
    crashes: 0,
  })
  expect(await jobUntil(unwanted.id, (job) => job.state === 'aborted')).toMatchObject({
    reason: 'aborted_by_user',
    error: 'enough',
  })
  expect(await jobUntil(child.id, (job) => job.state === 'aborted')).toMatchObject({ reason: 'aborted_by_parent' })
  for (const job of [late, unwanted])
    expect(await finishAgent(stage.runtime, job, { guard: claimOf(job), ending: COMPLETED })).toBeNull()
  expect(await eventsOf(stage, late.id)).toEqual(['spawned', 'ended'])
  expect(await readJob(stage, healthy.id)).toMatchObject({ state: 'running', claimToken: healthy.claimToken })
  clearInterval(beat)
  await lock.close()
})

test('STUCK-4: an abort wish on a job that nobody holds is obeyed', async () => {
  const [queued, waiting] = [await spawned(), await claimed()]
  await storeWaitingJob(stage.runtime.database, claimOf(waiting), { on: 'inbox', forMs: null })
  const wish = { by: 'alice', reason: 'aborted_by_parent' as const, text: 'enough' }
  await storeAbortWish(stage.runtime.database, [queued.id, waiting.id], wish)
  reconcile()
  for (const job of [queued, waiting]) {
    const ended = await jobUntil(job.id, (row) => row.state === 'aborted')
    expect(ended).toMatchObject({ reason: 'aborted_by_parent', error: 'enough' })
  }
  const event = await stage.runtime.database.agentEvent.findFirst({ where: { jobId: queued.id, kind: 'ended' } })
  expect(event?.actorId).toBe('alice')
})

test('an outbox entry that its writer never told is told', async () => {
  const job = await spawned()
  await told(job.id)
  await stage.runtime.deliveries.remove('default', job.id, 1)
  await stage.runtime.database.outbox.updateMany({
    where: { jobId: job.id },
    data: { doneAt: null, nextAttemptAt: new Date(0) },
  })
  reconcile()
  await told(job.id)
  expect(await delivery(job)).toBeDefined()
})

test('of two reconcilers one is active; the other takes over when it stops, or lets its lease run out', async () => {
  const { database } = stage.runtime
  const lease = () => database.lease.findUnique({ where: { name: 'reconciler' } })
  const first = reconcile('r1')
  await waitUntil(lease)
  reconcile('r2')
  const renewals = new Set<number>()
  await waitUntil(async () => {
    const now = await lease()
    expect(now?.holder).toBe('r1')
    return renewals.add(now?.until.getTime() ?? 0).size > 3
  })
  expect(await takeLease(database, 'reconciler', 'r3', 5_000)).toBe(false)
  await first.stop()
  await waitUntil(async () => (await lease())?.holder === 'r2', { within: 2_000 })

  await started[1]?.stop()
  await takeLease(database, 'reconciler', 'frozen', 2_000)
  const third = reconcile('r3')
  const lost = await claimed('gone')
  await jobUntil(lost.id, (job) => job.state === 'pending')
  expect((await lease())?.holder).toBe('r3')
  await third.stop()
})

/** Holds a tree's lock, as any operation does, while `work` runs, and until the reconciler waits for that lock. */
async function whileReconcilerWaits(rootJobId: string, work: () => Promise<unknown>): Promise<void> {
  const { database } = stage.runtime
  await transact(stage.runtime, async (tx) => {
    await lockTree(tx, rootJobId)
    reconcile()
    await waitUntil(async () => {
      const waiting = await database.$queryRaw<unknown[]>`
        select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
      return waiting.length > 0
    })
    await work()
  })
}

test('a wait that begins while the reconciler waits for the lock is not ended for the one before', async () => {
  const parent = await claimed()
  await storeWaitingJob(stage.runtime.database, claimOf(parent), { on: 'retry', forMs: 60_000 })
  await shift(parent.id, 'waitUntil', 120)
  await whileReconcilerWaits(
    parent.rootJobId,
    () =>
      stage.runtime.database.$executeRaw`
      update "offshoot"."AgentJob" set "waitUntil" = clock_timestamp() + interval '1 hour' where "id" = ${parent.id}`,
  )
  const marker = await claimed('gone')
  await jobUntil(marker.id, (job) => job.state === 'pending')
  expect(await readJob(stage, parent.id)).toMatchObject({ state: 'running', waitingOn: 'retry', deliverySeq: 1 })
})

test('a job that a worker claims while the reconciler waits for the lock has not timed out in the queue', async () => {
  const job = await spawned()
  await shift(job.id, 'createdAt', 7_200)
  await whileReconcilerWaits(job.rootJobId, async () => {
    const held = await claimNext(stage.runtime, job.id)
    await storeWaitingJob(stage.runtime.database, claimOf(held), { on: 'inbox', forMs: null })
  })
  const marker = await claimed('gone')
  await jobUntil(marker.id, (each) => each.state === 'pending')
  expect(await readJob(stage, job.id)).toMatchObject({ state: 'running', waitingOn: 'inbox' })
})

test('STUCK-7: a job that cannot be repaired keeps no other from its repair', async () => {
  const { database } = stage.runtime
  const broken = await claimed()
  await database.agentStep.create({
    data: {
      jobId: broken.id,
      index: 0,
      generation: 1,
      format: 1,
      startedAt: new Date(),
      modelOutput: { $offshoot: 'bigint', value: 'x' },
    },
  })
  await database.agentJob.update({ where: { id: broken.id }, data: { steps: 1, claimToken: null } })
  await shift(broken.id, 'deadlineAt', 7_200)
  reconcile()
  const late = await spawned()
  await shift(late.id, 'deadlineAt', 7_200)
  await jobUntil(late.id, (job) => job.state === 'failed')
  const waiting = await claimed()
  await storeWaitingJob(database, claimOf(waiting), { on: 'retry', forMs: 0 })
  await jobUntil(waiting.id, (job) => job.state === 'pending')
  expect(await readJob(stage, broken.id)).toMatchObject({ state: 'running' })
})
