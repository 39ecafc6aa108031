// What the record knows of inline jobs: whose they are, and what becomes of them when their process is gone.
import { endOf, eventsOf, readJob } from '@offshoot/testing/agents'
import { claimNext, claimOf, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type AgentJob, type ClaimedJob, parkJob } from '../src/db/agent-jobs.ts'
import { sql } from '../src/db/database.ts'
import { storeModelOutput, storeWholeStep } from '../src/db/journal.ts'
import { holdPresenceLock, insertWorker, type PresenceLock } from '../src/db/workers.ts'
import { newId } from '../src/ids.ts'
import { handBack } from '../src/operations/hand-back.ts'
import { startReconciler } from '../src/operations/reconcile.ts'
import { retryAgent } from '../src/operations/retry-agent.ts'
import { waitForRetry } from '../src/operations/wait-for-retry.ts'

let stage: TestStage
/** The process in whose name jobs are spawned here: it lives, has no heartbeat, and runs none. */
const workerId = newId()
let presence: PresenceLock
beforeAll(async () => {
  stage = await openTestStage({ runsInline: true, environment: { WORKER_LOCK_MS: '600000' } })
  await stage.putBot('writer')
  const { database, inline, logger, config } = stage.runtime
  const worker = await insertWorker(database, { id: workerId, host: 'here', pid: 1, lanes: [] })
  presence = await holdPresenceLock({ databaseUrl: config.DATABASE_URL, worker, logger, onRegained: () => undefined })
  inline?.start({ id: () => workerId, concurrency: 1, run: async () => ({}) })
})
afterAll(async () => {
  await presence.close()
  await stage.close()
})

const claimed = async (job?: AgentJob): Promise<ClaimedJob> => {
  const { id } = job ?? (await spawnJob(stage.runtime, 'alice'))
  return claimNext(stage.runtime, id, workerId)
}

/** A stored step that has said something. */
async function storeStep(job: ClaimedJob): Promise<void> {
  const usage = { inputTokens: 10, outputTokens: 5, reasoningTokens: 1, totalTokens: 15 }
  const rest = { parts: [], usage, finishReason: 'tool-calls', elapsedMs: 1, inboxSeqs: [] }
  await storeModelOutput(stage.runtime.database, claimOf(job), { index: 0, generation: 1, ...rest })
  const messages = [{ role: 'assistant' as const, content: [{ type: 'text' as const, text: 'So far.' }] }]
  await storeWholeStep(stage.runtime.database, claimOf(job), 0, messages)
}

test('an inline job belongs to its process while it is pending, runs, waits, parks and is handed back, and so does its child', async () => {
  const pending = await spawnJob(stage.runtime, 'alice')
  expect(pending).toMatchObject({ runner: 'inline', workerId, state: 'pending' })
  const job = await claimed(pending)
  const child = await spawnChild(stage.runtime, job, { mode: 'sync' })
  expect(child).toMatchObject({ runner: 'inline', workerId, state: 'pending' })
  expect(await readJob(stage, job.id)).toMatchObject({ waitingOn: 'children', claimToken: null, workerId })

  const other = await claimed()
  expect(await handBack(stage.runtime, other, { token: other.claimToken }, 'handed-back')).toBe(true)
  expect(await readJob(stage, other.id)).toMatchObject({ state: 'pending', claimToken: null, workerId })
  const again = await claimed(other)
  expect(
    await waitForRetry(stage.runtime, again, claimOf(again), { forMs: 60_000, because: 'test', counted: true }),
  ).toBe(true)
  expect(await readJob(stage, other.id)).toMatchObject({ waitingOn: 'retry', claimToken: null, workerId })

  const parked = await claimed()
  expect(await parkJob(stage.runtime.database, claimOf(parked), 60_000)).toBe(true)
  expect(await readJob(stage, parked.id)).toMatchObject({ waitingOn: 'inbox', claimToken: null, workerId })
})

test('one that ran in a lost process ends in the transaction that finds that, keeps its journal, and is retried on the queue', async () => {
  const job = await claimed()
  await storeStep(job)
  expect(await handBack(stage.runtime, job, { lostWorkerId: workerId }, 'worker-lost')).toBe(true)
  expect(await readJob(stage, job.id)).toMatchObject({
    state: 'failed',
    reason: 'worker_lost',
    result: 'So far.',
    partial: true,
    steps: 1,
  })
  expect(await eventsOf(stage, job.id)).toEqual(['spawned', 'worker-lost', 'ended'])
  const answer = await retryAgent(stage.runtime, { userId: 'alice', admin: false }, { jobId: job.id }, 'alice')
  expect(answer).toMatchObject({
    kind: 'retried',
    job: { runner: 'queue', workerId: null, state: 'pending', generation: 2, steps: 1 },
  })
})

test('STUCK-7: the reconciler ends what is pending and what waits when the process is gone, and nothing before', async () => {
  const parent = await claimed()
  const child = await spawnChild(stage.runtime, parent, { mode: 'sync' })
  const { database } = stage.runtime
  // The parent's row stands before the child's: that is not what decides who ends first.
  const isBehind = async () => {
    // Versions of a row that one transaction makes fill its page, so that the row moves on.
    await database.$transaction(async (tx) => {
      for (let version = 0; version < 20; version += 1)
        await tx.agentJob.update({ where: { id: child.id }, data: { tags: {} } })
    })
    const rows = await database.$queryRaw<unknown[]>(sql`
      select 1 from "offshoot"."AgentJob" p, "offshoot"."AgentJob" c
      where p."id" = ${parent.id} and c."id" = ${child.id} and c.ctid > p.ctid`)
    return rows.length === 1
  }
  await waitUntil(isBehind)
  const overdue = await spawnJob(stage.runtime, 'alice', { timeoutSeconds: 60 })
  const reconciler = startReconciler(stage.runtime, { holder: 'r' })
  try {
    // A round is over once this one has ended.
    const past = { deadlineAt: new Date(0) }
    await database.agentJob.update({ where: { id: overdue.id }, data: past })
    await waitUntil(async () => (await readJob(stage, overdue.id)).state === 'failed')
    for (const { id } of [parent, child]) expect(['pending', 'running']).toContain((await readJob(stage, id)).state)
    await database.worker.delete({ where: { id: workerId } })
    // The child first: it is not aborted because its parent has ended.
    for (const { id } of [parent, child])
      expect(await endOf(stage, id)).toMatchObject({ state: 'failed', reason: 'worker_lost' })
  } finally {
    await reconciler.stop()
  }
})
