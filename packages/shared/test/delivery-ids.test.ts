// Deliveries and the queue that they go into: their ids are ours, and what the queue does not take is not lost from sight.
import { readJob } from '@offshoot/testing/agents'
import { claimNext, claimOf, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { pino } from 'pino'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Ending } from '../src/db/agent-jobs.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { handBack } from '../src/operations/hand-back.ts'
import { retryAgent } from '../src/operations/retry-agent.ts'
import { transact } from '../src/operations/transact.ts'
import { openRuntime, type Runtime } from '../src/runtime.ts'

let stage: TestStage
let runtime: Runtime
let logs: Record<string, unknown>[] = []
beforeAll(async () => {
  stage = await openTestStage()
  const logger = pino({ level: 'warn' }, { write: (line: string) => void logs.push(JSON.parse(line)) })
  runtime = openRuntime({ ...stage.runtime, logger, name: 'test-deliveries' })
  await stage.putBot('writer')
})
afterAll(async () => {
  await runtime.close()
  await stage.close()
})

const queue = () => runtime.deliveries.lane('default')
const untilInQueue = (id: string) => waitUntil(async () => (await queue().getJobState(id)) !== 'unknown')

test('LOSS-16: every delivery has an id of its own: the job’s, a dash and the delivery’s number', async () => {
  const spawned = await spawnJob(runtime, 'alice')
  await untilInQueue(`${spawned.id}-1`)
  const first = await claimNext(runtime, spawned.id)
  await handBack(runtime, first, { token: first.claimToken }, 'handed-back')
  await untilInQueue(`${spawned.id}-2`)
  const second = await claimNext(runtime, spawned.id)
  const failed: Ending = { state: 'failed', reason: 'model_auth', result: null, partial: false }
  await finishAgent(runtime, second, { guard: claimOf(second), ending: failed })
  await retryAgent(runtime, { userId: 'alice', admin: false }, { jobId: spawned.id }, 'alice')
  await untilInQueue(`${spawned.id}-3`)
  const ids = (await queue().getJobs()).map(({ id = '' }) => id)
  expect(ids.length).toBeGreaterThan(1)
  for (const id of ids) {
    // BullMQ takes digits alone for an id of its own making, and refuses most ids with a colon.
    expect(id).toMatch(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-[1-9]\d*$/)
    expect(id).not.toMatch(/:|^\d+$/)
  }
})

test('LOSS-16: a delivery that the queue refuses is told again, and shows in the outbox and the log', async () => {
  const { id } = await spawnJob(runtime, 'alice')
  await untilInQueue(`${id}-1`)
  const key = `delivery:${id}-2`
  // BullMQ takes no priority beyond 2^21; Offshoot itself stays below.
  const payload = {
    lane: 'default',
    name: 'forge/writer',
    priority: 9_000_000,
    data: { agentJobId: id, deliverySeq: 2, owner: 'alice', parent: null, depth: 1 },
  }
  logs = []
  await transact(runtime, async (tx) => tx.tell({ jobId: id, kind: 'delivery', key, payload }))
  const entryOf = () => runtime.database.outbox.findUniqueOrThrow({ where: { key } })
  const entry = await waitUntil(async () => {
    const found = await entryOf()
    return found.attempts > 0 && found
  })
  expect(entry).toMatchObject({ doneAt: null, deadAt: null, lastError: expect.stringMatching(/priority/i) })
  expect(logs).toContainEqual(
    expect.objectContaining({ level: 40, kind: 'delivery', jobId: id, error: entry.lastError }),
  )
  expect(await queue().getJobState(`${id}-2`)).toBe('unknown')
  expect(await readJob(stage, id)).toMatchObject({ state: 'pending' })

  await runtime.database.outbox.update({
    where: { key },
    data: { payload: { ...payload, priority: 10 }, nextAttemptAt: new Date(0) },
  })
  await runtime.outbox.dispatchDue()
  expect(await queue().getJobState(`${id}-2`)).toBe('prioritized')
  await waitUntil(async () => (await entryOf()).doneAt !== null)
})
