// Whatever the reconciler finds about a job is a line in that job's history, and is counted once.
import { readJob } from '@offshoot/testing/agents'
import { claimNext, claimOf, COMPLETED, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { counted } from '@offshoot/testing/metrics'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { type JobFinding, JOB_FINDINGS } from '../src/contracts/finding.ts'
import { storeAbortWish, storeWaitingJob } from '../src/db/agent-jobs.ts'
import { insertWorker } from '../src/db/workers.ts'
import { newId } from '../src/ids.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { type Reconciler, startReconciler } from '../src/operations/reconcile.ts'

let stage: TestStage
let reconciler: Reconciler | undefined
beforeAll(async () => {
  stage = await openTestStage({ environment: { RETENTION_DAYS: '1', LOG_LEVEL: 'silent' } })
  await stage.putBot('writer')
})
afterEach(async () => {
  await reconciler?.stop()
  reconciler = undefined
  await stage.runtime.database.worker.deleteMany()
})
afterAll(() => stage.close())

const spawned = () => spawnJob(stage.runtime, 'alice')
const claimed = async (workerId?: string) => claimNext(stage.runtime, (await spawned()).id, workerId)

/** Moves a stored instant of a job two days into the past. */
async function longAgo(jobId: string, column: 'deliveredAt' | 'deadlineAt' | 'createdAt' | 'waitUntil' | 'finishedAt') {
  await stage.runtime.database.$executeRawUnsafe(
    `update "offshoot"."AgentJob" set "${column}" = clock_timestamp() - interval '2 days' where "id" = $1`,
    jobId,
  )
}

/** Waits for what must be told of a job. */
async function told(jobId: string): Promise<void> {
  await waitUntil(async () => (await stage.runtime.database.outbox.count({ where: { jobId, doneAt: null } })) === 0)
}

/** How each finding comes about, by hand. Answers the job that it is about, and the line that tells of it. */
const CASES: Record<JobFinding, () => Promise<{ jobId: string; line: string }>> = {
  async job_of_lost_worker() {
    const { id } = await insertWorker(stage.runtime.database, { id: newId(), host: 'h', pid: 1, lanes: ['default'] })
    return { jobId: (await claimed(id)).id, line: 'worker-lost' }
  },
  async lost_delivery() {
    const { id } = await spawned()
    await told(id)
    await stage.runtime.deliveries.remove('default', id, 1)
    await longAgo(id, 'deliveredAt')
    return { jobId: id, line: 'redelivered' }
  },
  async retry_due() {
    const job = await claimed()
    await storeWaitingJob(stage.runtime.database, claimOf(job), { on: 'retry', forMs: 0 })
    return { jobId: job.id, line: 'woken' }
  },
  async overdue_wait() {
    const job = await claimed()
    await storeWaitingJob(stage.runtime.database, claimOf(job), { on: 'inbox', forMs: 0 })
    return { jobId: job.id, line: 'woken' }
  },
  async lost_wake() {
    const parent = await claimed()
    const child = await spawnChild(stage.runtime, parent, { mode: 'sync' })
    await stage.runtime.database.agentJob.update({ where: { id: child.id }, data: { state: 'completed' } })
    return { jobId: parent.id, line: 'woken' }
  },
  async deadline() {
    const { id } = await spawned()
    await longAgo(id, 'deadlineAt')
    return { jobId: id, line: 'ended' }
  },
  async queue_time() {
    const { id } = await spawned()
    await longAgo(id, 'createdAt')
    return { jobId: id, line: 'ended' }
  },
  async unheld_abort() {
    const { id } = await spawned()
    const wish = { by: 'alice', reason: 'aborted_by_user' as const, text: null }
    await storeAbortWish(stage.runtime.database, [id], wish)
    return { jobId: id, line: 'ended' }
  },
  async stuck_run() {
    const worker = await insertWorker(stage.runtime.database, { id: newId(), host: 'h', pid: 1, lanes: ['default'] })
    const { id } = await claimed(worker.id)
    await longAgo(id, 'deadlineAt')
    return { jobId: id, line: 'ended' }
  },
  async outbox_due() {
    const { id } = await spawned()
    await told(id)
    await stage.runtime.database.outbox.updateMany({
      where: { jobId: id },
      data: { doneAt: null, nextAttemptAt: new Date(0) },
    })
    return { jobId: id, line: 'told-late' }
  },
}

const findings = (kind: string) => counted(stage.runtime, 'offshoot_reconciler_findings_total', { kind })

describe('a finding is a line in the history, and is counted', () => {
  test.each(JOB_FINDINGS)('%s', async (finding) => {
    const before = await findings(finding)
    const { jobId, line } = await CASES[finding]()
    reconciler = startReconciler(stage.runtime, { holder: 'r' })
    const found = await waitUntil(async () => {
      const events = await stage.runtime.database.agentEvent.findMany({ where: { jobId, kind: line } })
      return events.find(({ data }) => data !== null && typeof data === 'object' && 'finding' in data)
    })
    expect(found.data).toMatchObject({ finding })
    await waitUntil(async () => (await findings(finding)) === before + 1, { what: 'the count' })
  })
})

test('a worker that was lost without a job, and what retention removed, are counted: no history can hold them', async () => {
  const [workersBefore, treesBefore] = [await findings('lost_worker'), await findings('removed_by_retention')]
  const { database } = stage.runtime
  const { id } = await insertWorker(database, { id: newId(), host: 'h', pid: 1, lanes: ['default'] })
  const old = await claimed()
  await finishAgent(stage.runtime, old, { guard: claimOf(old), ending: COMPLETED })
  await longAgo(old.id, 'finishedAt')
  reconciler = startReconciler(stage.runtime, { holder: 'r' })
  await waitUntil(async () => (await findings('lost_worker')) === workersBefore + 1)
  await waitUntil(async () => (await findings('removed_by_retention')) === treesBefore + 1)
  expect(await database.worker.count({ where: { id } })).toBe(0)
  expect(await database.agentJob.count({ where: { id: old.id } })).toBe(0)
})

test('an ordinary wake and an ordinary end are no findings', async () => {
  const parent = await claimed()
  const child = await spawnChild(stage.runtime, parent, { mode: 'sync' })
  const run = await claimNext(stage.runtime, child.id)
  await finishAgent(stage.runtime, run, { guard: claimOf(run), ending: COMPLETED })
  expect(await readJob(stage, parent.id)).toMatchObject({ state: 'pending' })
  const events = await stage.runtime.database.agentEvent.findMany({
    where: { jobId: { in: [parent.id, child.id] }, kind: { in: ['woken', 'ended'] } },
  })
  expect(events).toHaveLength(2)
  for (const { data } of events) expect(data).not.toHaveProperty('finding')
})
