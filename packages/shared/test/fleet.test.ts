// What operators are told of the whole fleet: true in every state, and as cheap after years as on the first day.
import { claimNext, claimOf, COMPLETED, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { seriesIn } from '@offshoot/testing/metrics'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { loadConfig } from '../src/config.ts'
import { storeWaitingJob } from '../src/db/agent-jobs.ts'
import { sql } from '../src/db/database.ts'
import { addUpJobTally } from '../src/db/job-tally.ts'
import { deadLettersQuery } from '../src/db/outbox.ts'
import { insertWorker } from '../src/db/workers.ts'
import { fleetMetrics } from '../src/fleet-metrics.ts'
import { newId } from '../src/ids.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { handBack } from '../src/operations/hand-back.ts'
import { fleetQuery, readFleet } from '../src/operations/read-fleet.ts'
import { openRuntime } from '../src/runtime.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ environment: { MAX_ACTIVE_JOBS_PER_USER: '1000', LOG_LEVEL: 'silent' } })
  await stage.putBot('writer')
})
beforeEach(async () => {
  await stage.runtime.database.$executeRaw`delete from "offshoot"."AgentJob"`
  await stage.runtime.database.$executeRaw`delete from "offshoot"."Outbox"`
  await stage.runtime.database.$executeRaw`delete from "offshoot"."Worker"`
})
afterAll(() => stage.close())

const metrics = async (lanes: string[] = ['default']) => fleetMetrics(await readFleet(stage.runtime, lanes))
const slotsNeeded = async (lane = 'default') => seriesIn(await metrics(), 'offshoot_slots_needed', { lane })

test('LOSS-14: the slots that are needed are the jobs that a worker holds or is to take, in every state', async () => {
  expect(await slotsNeeded()).toBe(0)
  const parent = await spawnJob(stage.runtime, 'alice')
  expect(await slotsNeeded()).toBe(1)
  const run = await claimNext(stage.runtime, parent.id)
  expect(await slotsNeeded()).toBe(1)
  // It waits, and its child is to be taken.
  const child = await spawnChild(stage.runtime, run, { mode: 'sync' })
  expect(await slotsNeeded()).toBe(1)
  const childRun = await claimNext(stage.runtime, child.id)
  expect(await slotsNeeded()).toBe(1)
  await finishAgent(stage.runtime, childRun, { guard: claimOf(childRun), ending: COMPLETED })
  // It is woken.
  expect(await slotsNeeded()).toBe(1)
  const again = await claimNext(stage.runtime, parent.id)
  await handBack(stage.runtime, again, claimOf(again), 'handed-back')
  expect(await slotsNeeded()).toBe(1)
  const last = await claimNext(stage.runtime, parent.id)
  await finishAgent(stage.runtime, last, { guard: claimOf(last), ending: COMPLETED })
  expect(await slotsNeeded()).toBe(0)
})

test('LOSS-14: with Redis away the slots needed are told all the same, and what only Redis knows has no number', async () => {
  const config = loadConfig({ ...stage.environment, REDIS_URL: 'redis://127.0.0.1:1' })
  const cut = openRuntime({ ...stage.runtime, config, name: 'cut' })
  try {
    await claimNext(cut, (await spawnJob(cut, 'alice')).id)
    const text = await fleetMetrics(await readFleet(cut, ['default']))
    expect(seriesIn(text, 'offshoot_slots_needed', { lane: 'default' })).toBe(1)
    expect(seriesIn(text, 'offshoot_jobs_active', { lane: 'default' })).toBe(1)
    expect(text).not.toContain('offshoot_queue_depth')
    expect(text).not.toContain('offshoot_queue_paused')
  } finally {
    await cut.close()
  }
})

test('jobs and workers are told by lane; a wait says on what; the oldest pending job says since when', async () => {
  const { database } = stage.runtime
  for (const on of ['inbox', 'retry'] as const) {
    const job = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice')).id)
    await storeWaitingJob(database, claimOf(job), { on, forMs: 60_000 })
  }
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice', { lane: 'slow' })).id)
  const child = await spawnChild(stage.runtime, parent, { mode: 'sync', lane: 'slow' })
  await database.$executeRaw`
    update "offshoot"."AgentJob" set "deliveredAt" = clock_timestamp() - interval '90 seconds' where "id" = ${child.id}`
  const [, draining, unseen] = await Promise.all(
    [['default', 'slow'], ['slow'], ['slow']].map((lanes) =>
      insertWorker(database, { id: newId(), host: 'h', pid: 1, lanes }),
    ),
  )
  await database.worker.update({ where: { id: draining?.id ?? '' }, data: { drainingAt: new Date() } })
  await database.worker.update({ where: { id: unseen?.id ?? '' }, data: { seenAt: new Date(0) } })
  await waitUntil(async () => (await stage.runtime.deliveries.counts('slow')).depth > 0)
  await stage.runtime.deliveries.lane('slow').pause()
  const text = await metrics()
  expect(seriesIn(text, 'offshoot_jobs_waiting', { lane: 'default', on: 'inbox' })).toBe(1)
  expect(seriesIn(text, 'offshoot_jobs_waiting', { lane: 'default', on: 'retry' })).toBe(1)
  expect(seriesIn(text, 'offshoot_jobs_waiting', { lane: 'slow', on: 'children' })).toBe(1)
  expect(seriesIn(text, 'offshoot_jobs_pending', { lane: 'slow' })).toBe(1)
  expect(seriesIn(text, 'offshoot_slots_needed', { lane: 'default' })).toBe(0)
  expect(seriesIn(text, 'offshoot_slots_needed', { lane: 'slow' })).toBe(1)
  const age = seriesIn(text, 'offshoot_queue_oldest_age_seconds', { lane: 'slow' }) ?? 0
  expect(age).toBeGreaterThanOrEqual(90)
  expect(age).toBeLessThan(120)
  expect(seriesIn(text, 'offshoot_lane_workers', { lane: 'slow' })).toBe(1)
  expect(seriesIn(text, 'offshoot_workers', { state: 'running' })).toBe(1)
  expect(seriesIn(text, 'offshoot_workers', { state: 'draining' })).toBe(1)
  expect(seriesIn(text, 'offshoot_queue_paused', { lane: 'slow' })).toBe(1)
  expect(seriesIn(text, 'offshoot_queue_paused', { lane: 'default' })).toBe(0)
  expect(seriesIn(text, 'offshoot_queue_depth', { lane: 'slow' })).toBeGreaterThan(0)
  await stage.runtime.deliveries.lane('slow').resume()
})

/** An event of ten minutes ago. */
const entry = (key: string, more: object) => ({
  jobId: 'j',
  kind: 'completionEvent' as const,
  key,
  createdAt: new Date(Date.now() - 600_000),
  nextAttemptAt: new Date(Date.now() + 60_000),
  ...more,
})

test('LOSS-14: inline jobs are told of, but need no slot and age in no queue, and their host is no worker', async () => {
  const { database } = stage.runtime
  const [pending, active] = [await spawnJob(stage.runtime, 'alice'), await spawnJob(stage.runtime, 'alice')]
  await database.agentJob.updateMany({ data: { runner: 'inline', deliveredAt: new Date(0) } })
  const { id } = await insertWorker(database, { id: newId(), host: 'h', pid: 1, lanes: [] })
  await claimNext(stage.runtime, active.id, id)
  expect((await database.agentJob.findUnique({ where: { id: pending.id } }))?.state).toBe('pending')
  const text = await metrics()
  const of = (name: string, labels: Record<string, string>) => seriesIn(text, name, labels)
  expect(of('offshoot_jobs_active', { lane: 'default' })).toBe(1)
  expect(of('offshoot_jobs_pending', { lane: 'default' })).toBe(1)
  expect(of('offshoot_slots_needed', { lane: 'default' })).toBe(0)
  expect(of('offshoot_queue_oldest_age_seconds', { lane: 'default' })).toBe(0)
  expect(of('offshoot_workers', { state: 'running' })).toBe(0)
})

test('an entry that was not told is due once its writer should have, and a dead letter once it is given up', async () => {
  const { database } = stage.runtime
  await database.outbox.createMany({
    data: [
      entry('its writer has it', {}),
      entry('in back-off', { attempts: 3 }),
      entry('overdue', { nextAttemptAt: new Date(0), createdAt: new Date(Date.now() - 1_200_000) }),
      entry('dead', { attempts: 150, deadAt: new Date() }),
      entry('told', { attempts: 2, doneAt: new Date() }),
      entry('told after all', { attempts: 150, deadAt: new Date(), doneAt: new Date() }),
    ],
  })
  const text = await metrics()
  const kind = 'completionEvent'
  expect(seriesIn(text, 'offshoot_outbox_due', { kind })).toBe(2)
  expect(seriesIn(text, 'offshoot_outbox_oldest_age_seconds', { kind })).toBeGreaterThanOrEqual(1_200)
  expect(seriesIn(text, 'offshoot_dead_letters', { kind })).toBe(1)
  expect(seriesIn(text, 'offshoot_outbox_due', { kind: 'delivery' })).toBe(0)
})

test('lanes beyond a hundred are told as one, and none of their jobs is lost from the sum', async () => {
  const { id: pattern } = await spawnJob(stage.runtime, 'alice')
  await copies(pattern, 150, `'pending', null, 'lane-' || n`)
  const { record, queues } = await readFleet(stage.runtime, ['default'])
  expect(record?.lanes).toHaveLength(101)
  expect(record?.lanes.find(({ lane }) => lane === '(other)')?.pending).toBe(51)
  expect(record?.lanes.reduce((sum, { pending }) => sum + pending, 0)).toBe(151)
  expect(queues?.has('(other)')).toBe(false)
})

/** Makes `count` jobs like this one, but for state, end and lane, which SQL over `n` says. */
async function copies(jobId: string, count: number, stateEndLane: string): Promise<void> {
  const columns = await stage.runtime.database.$queryRaw<{ name: string }[]>`
    select column_name as name from information_schema.columns
    where table_schema = 'offshoot' and table_name = 'AgentJob'
      and column_name not in ('id', 'rootJobId', 'state', 'finishedAt', 'lane')`
  const same = columns.map(({ name }) => `"${name}"`).join(', ')
  await stage.runtime.database.$executeRawUnsafe(
    `insert into "offshoot"."AgentJob" ("id", "rootJobId", "state", "finishedAt", "lane", ${same})
     select gen_random_uuid()::text, gen_random_uuid()::text, ${stateEndLane}, ${same}
     from "offshoot"."AgentJob", generate_series(1, $2) n where "id" = $1`,
    jobId,
    count,
  )
}

const tally = async () => (await readFleet(stage.runtime, [])).record?.totalJobs
const rowCount = () => stage.runtime.database.agentJob.count()

test('the number of jobs is exact without a count: through spawns, removals and adding up, all at once', async () => {
  const { database } = stage.runtime
  expect(await tally()).toBe(await rowCount())
  const adding = async () => {
    for (let round = 0; round < 10; round += 1) await addUpJobTally(database)
  }
  const spawning = async (user: string) => {
    for (let round = 0; round < 8; round += 1) {
      const { id } = await spawnJob(stage.runtime, user)
      if (round % 4 === 0) await database.agentJob.delete({ where: { id } })
    }
  }
  await Promise.all([adding(), adding(), spawning('a'), spawning('b'), spawning('c')])
  expect(await rowCount()).toBe(18)
  expect(await tally()).toBe(18)
  await addUpJobTally(database)
  await addUpJobTally(database)
  expect(await database.jobTally.count()).toBe(1)
  expect(await tally()).toBe(18)
  // A transaction that comes to nothing counts for nothing.
  const undone = database.$transaction(async (tx) => {
    await tx.agentJob.deleteMany()
    throw new Error('undone')
  })
  await expect(undone).rejects.toThrow('undone')
  expect(await tally()).toBe(18)
})

/** Pages of memory or disk that a statement touches. */
async function pagesOf(query: ReturnType<typeof sql>): Promise<number> {
  const [row] = await stage.runtime.database.$queryRaw<{ 'QUERY PLAN': { Plan: Record<string, number> }[] }[]>(
    sql`explain (analyze, buffers, format json) ${query}`,
  )
  const plan = row?.['QUERY PLAN'][0]?.Plan ?? {}
  return (plan['Shared Hit Blocks'] ?? NaN) + (plan['Shared Read Blocks'] ?? NaN)
}

test('UX-11: what health, metrics and the list of dead letters ask does not grow with the history', async () => {
  const { database, config } = stage.runtime
  const { id: pattern } = await spawnJob(stage.runtime, 'alice')
  const vacuum = async () => {
    await addUpJobTally(database)
    for (const table of ['AgentJob', 'Outbox', 'JobTally', 'Worker'])
      await database.$executeRawUnsafe(`vacuum analyze "offshoot"."${table}"`)
  }
  await vacuum()
  const before = await pagesOf(fleetQuery(config.WORKER_LOCK_MS))
  await copies(pattern, 20_000, `'completed', clock_timestamp(), 'default'`)
  await database.$executeRaw`
    insert into "offshoot"."Outbox" ("jobId", "kind", "key", "payload", "nextAttemptAt", "doneAt")
    select 'j', 'ended', 'k' || n, '{}', clock_timestamp(), clock_timestamp() from generate_series(1, 20000) n`
  await vacuum()
  const pages = await database.$queryRaw<{ pages: number }[]>`
    select relpages as pages from pg_class where oid = '"offshoot"."AgentJob"'::regclass`
  expect(pages[0]?.pages).toBeGreaterThan(1_000)
  const after = await pagesOf(fleetQuery(config.WORKER_LOCK_MS))
  expect(after).toBeLessThan(before + 30)
  expect(await tally()).toBe(20_001)
  expect(await pagesOf(deadLettersQuery({ limit: 10 }))).toBeLessThan(30)
})
