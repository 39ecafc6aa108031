// Completion events: sent through Inngest's SDK to a stub of its event endpoint, at least once, with the same id.
import { readJob } from '@offshoot/testing/agents'
import { type InngestBehaviour, type InngestStub, REFUSAL_BODY, startInngestStub } from '@offshoot/testing/inngest-stub'
import { claimNext, claimOf, COMPLETED, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { counted, seriesIn } from '@offshoot/testing/metrics'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { pino } from 'pino'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { loadConfig } from '../src/config.ts'
import type { Ending } from '../src/db/agent-jobs.ts'
import { fleetMetrics } from '../src/fleet-metrics.ts'
import { requestAbort } from '../src/operations/abort-agent.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { retryAgent } from '../src/operations/retry-agent.ts'
import { readFleet } from '../src/operations/read-fleet.ts'
import { startReconciler } from '../src/operations/reconcile.ts'
import { resendDeadLetter } from '../src/operations/resend-dead-letter.ts'
import { openRuntime, type Runtime } from '../src/runtime.ts'

let stage: TestStage
let inngest: InngestStub
let logs: Record<string, unknown>[] = []

beforeAll(async () => {
  inngest = await startInngestStub()
  const opened = await openTestStage({
    environment: {
      INNGEST_BASE_URL: inngest.url,
      INNGEST_EVENT_KEY: 'test-key',
      INNGEST_SIGNING_KEY: 'signkey-test-00',
      LOG_LEVEL: 'silent',
    },
  })
  const logger = pino({ level: 'error' }, { write: (line: string) => void logs.push(JSON.parse(line)) })
  const runtime = openRuntime({ ...opened.runtime, logger, name: 'test-events' })
  stage = {
    ...opened,
    runtime,
    async close() {
      await runtime.close()
      await opened.close()
    },
  }
  await stage.putBot('writer')
})
beforeEach(() => {
  inngest.reset()
  logs = []
})
afterAll(async () => {
  await stage.close()
  await inngest.stop()
})

const event = { name: 'poem/written', data: { ticket: 7 } }

async function endedJob(ending: Ending = COMPLETED, runtime: Runtime = stage.runtime) {
  const job = await claimNext(runtime, (await spawnJob(runtime, 'alice', { completionEvent: event })).id)
  await finishAgent(runtime, job, { guard: claimOf(job), ending })
  return job
}

function entryOf(jobId: string) {
  return stage.runtime.database.outbox.findUnique({ where: { key: `event:agent-job-${jobId}-1` } })
}

test('an event is sent for completed, failed and aborted jobs, and the row says so', async () => {
  const failed: Ending = { state: 'failed', reason: 'model_auth', result: null, error: 'No.', partial: false }
  const jobs = [await endedJob(), await endedJob(failed)]
  const queued = await spawnJob(stage.runtime, 'alice', { completionEvent: event })
  await requestAbort(stage.runtime, queued, { by: 'alice', reason: 'aborted_by_user', text: null })
  await waitUntil(() => inngest.received.length === 3)
  const states = new Map(
    inngest.received.map(({ id, name, data }) => [id, [name, data['ticket'], data['state'], data['reason']]]),
  )
  expect(states).toEqual(
    new Map([
      [`agent-job-${jobs[0]?.id}-1`, ['poem/written', 7, 'completed', 'completed']],
      [`agent-job-${jobs[1]?.id}-1`, ['poem/written', 7, 'failed', 'model_auth']],
      [`agent-job-${queued.id}-1`, ['poem/written', 7, 'aborted', 'aborted_by_user']],
    ]),
  )
  for (const { id } of [...jobs, queued]) await waitUntil(async () => (await readJob(stage, id)).completionEventFired)
})

/** The entry after so many failed attempts. */
async function failedEntry(jobId: string, attempts = 1) {
  return waitUntil(async () => {
    const entry = await entryOf(jobId)
    return entry !== null && entry.attempts >= attempts && entry
  })
}

/** Lets the entry's back-off be over, and tells it again. */
async function tellAgain(jobId: string): Promise<void> {
  const { database, outbox } = stage.runtime
  await database.outbox.updateMany({ where: { jobId, doneAt: null }, data: { nextAttemptAt: new Date(0) } })
  await outbox.dispatchDue()
  await waitUntil(async () => (await entryOf(jobId))?.doneAt !== null)
}

test.each<[string, InngestBehaviour]>([
  ['answers 500', 500],
  ['answers 503', 503],
  ['limits the rate', 429],
  ['takes the event and cuts its 200 off', 'cut'],
])(
  'STATE-8 LOSS-18: an endpoint that %s leaves the job alone; the event goes out later, with the same id',
  async (_, trouble) => {
    inngest.behave(trouble)
    const job = await endedJob()
    const id = `agent-job-${job.id}-1`
    expect(await failedEntry(job.id)).toMatchObject({ doneAt: null, deadAt: null, lastError: expect.any(String) })
    expect(await readJob(stage, job.id)).toMatchObject({ state: 'completed', completionEventFired: false })
    // One request for each attempt: retries are the outbox's alone.
    expect(inngest.asked).toEqual([id])
    inngest.behave(200)
    await tellAgain(job.id)
    expect(inngest.asked).toEqual([id, id])
    expect(inngest.received.at(-1)).toMatchObject({ id, data: { state: 'completed', result: 'done' } })
    expect(await readJob(stage, job.id)).toMatchObject({ state: 'completed', completionEventFired: true })
  },
)

test.each([400, 401, 403, 404, 413])(
  'LOSS-18: an event that is refused with %i is a dead letter at once, logged, and changes no job',
  async (status: number) => {
    inngest.behave(status)
    const job = await endedJob()
    const before = await readJob(stage, job.id)
    const entry = await failedEntry(job.id)
    expect(entry).toMatchObject({ doneAt: null, attempts: 1, deadAt: expect.any(Date) })
    expect(entry.lastError).toContain(`refused the event: ${status}`)
    expect(entry.lastError).not.toContain(REFUSAL_BODY)
    expect(inngest.asked).toEqual([`agent-job-${job.id}-1`])
    expect(logs.filter(({ jobId }) => jobId === job.id)).toEqual([
      expect.objectContaining({ level: 50, error: entry.lastError, msg: expect.stringContaining('a dead letter') }),
    ])
    inngest.behave(200)
    await stage.runtime.database.outbox.updateMany({ where: { jobId: job.id }, data: { nextAttemptAt: new Date(0) } })
    await stage.runtime.outbox.dispatchDue()
    expect(inngest.asked).toHaveLength(1)
    expect(await readJob(stage, job.id)).toEqual(before)
    expect(before).toMatchObject({ state: 'completed', result: 'done', completionEventFired: false })
  },
)

test('LOSS-18: an event that was tried often enough is a dead letter, too', async () => {
  inngest.behave(500)
  const job = await endedJob()
  await failedEntry(job.id)
  const { database, outbox } = stage.runtime
  await database.outbox.updateMany({
    where: { jobId: job.id, doneAt: null },
    data: { attempts: 149, nextAttemptAt: new Date(0) },
  })
  await outbox.dispatchDue()
  expect(await failedEntry(job.id, 150)).toMatchObject({ attempts: 150, deadAt: expect.any(Date) })
})

test('STATE-8: a late event of the first generation does not count for the second', async () => {
  inngest.behave(500)
  const failed: Ending = { state: 'failed', reason: 'model_auth', result: null, error: 'No.', partial: false }
  const job = await endedJob(failed)
  await failedEntry(job.id)
  const retried = await retryAgent(stage.runtime, { userId: 'alice', admin: false }, { jobId: job.id }, 'alice')
  expect(retried).toMatchObject({ kind: 'retried', job: { generation: 2 } })
  inngest.behave(200)
  await tellAgain(job.id)
  expect(inngest.received.map(({ id }) => id)).toEqual([`agent-job-${job.id}-1`])
  expect(await readJob(stage, job.id)).toMatchObject({ state: 'pending', completionEventFired: false })
  const again = await claimNext(stage.runtime, job.id)
  await finishAgent(stage.runtime, again, { guard: claimOf(again), ending: COMPLETED })
  await waitUntil(async () => (await readJob(stage, job.id)).completionEventFired)
  expect(inngest.received.at(-1)).toMatchObject({ id: `agent-job-${job.id}-2`, data: { state: 'completed' } })
})

test('UX-7 LOSS-18: an endpoint that hangs delays nothing; the event goes out once it answers', async () => {
  inngest.behave('hang')
  const before = performance.now()
  const job = await endedJob()
  expect(performance.now() - before).toBeLessThan(2_000)
  expect(await readJob(stage, job.id)).toMatchObject({ state: 'completed', completionEventFired: false })
  expect((await failedEntry(job.id)).lastError).toContain('cannot be reached')
  expect(inngest.asked).toHaveLength(1)
  inngest.behave(200)
  await tellAgain(job.id)
  expect(inngest.asked).toEqual([`agent-job-${job.id}-1`, `agent-job-${job.id}-1`])
  expect(await readJob(stage, job.id)).toMatchObject({ completionEventFired: true })
})

const gauge = async (name: string) =>
  seriesIn(await fleetMetrics(await readFleet(stage.runtime, [])), name, { kind: 'completionEvent' })
const tells = (outcome: string) =>
  counted(stage.runtime, 'offshoot_outbox_tells_total', { kind: 'completionEvent', outcome })

test('UX-7: an endpoint that fails leaves the job alone, and shows in the metrics, at last as a dead letter', async () => {
  const { database } = stage.runtime
  inngest.behave(500)
  const failedBefore = await tells('failed')
  const deadBefore = await gauge('offshoot_dead_letters')
  const givenUpBefore = await tells('dead')
  const job = await endedJob()
  await waitUntil(async () => (await tells('failed')) > failedBefore)
  await waitUntil(async () => ((await entryOf(job.id))?.attempts ?? 0) > 0)
  expect(await gauge('offshoot_outbox_due')).toBeGreaterThan(0)
  expect(await gauge('offshoot_outbox_oldest_age_seconds')).toBeGreaterThan(0)
  // Half a day of tries later:
  await database.outbox.updateMany({ where: { jobId: job.id }, data: { attempts: 149, nextAttemptAt: new Date(0) } })
  await waitUntil(async () => {
    await stage.runtime.outbox.dispatchDue()
    return (await entryOf(job.id))?.deadAt !== null
  })
  expect(await tells('dead')).toBe(givenUpBefore + 1)
  expect(await gauge('offshoot_dead_letters')).toBe((deadBefore ?? 0) + 1)
  expect(await readJob(stage, job.id)).toMatchObject({ state: 'completed', completionEventFired: false })
  const line = await database.agentEvent.findFirst({ where: { jobId: job.id, kind: 'dead-letter' } })
  expect(line?.data).toEqual({ kind: 'completionEvent', tries: 150 })
  // Given up is given up: nobody tries by himself any more.
  inngest.behave(200)
  await database.outbox.updateMany({ where: { jobId: job.id }, data: { nextAttemptAt: new Date(0) } })
  await stage.runtime.outbox.dispatchDue()
  const sent = () => inngest.received.filter((each) => each.data['jobId'] === job.id)
  expect(sent()).toEqual([])
  const entry = await entryOf(job.id)
  expect(await resendDeadLetter(stage.runtime, entry?.id ?? 0n, 'ops')).toMatchObject({ kind: 'resent' })
  await waitUntil(() => sent().length === 1)
  expect(sent()[0]?.id).toBe(`agent-job-${job.id}-1`)
  await waitUntil(async () => (await readJob(stage, job.id)).completionEventFired)
  expect(await gauge('offshoot_dead_letters')).toBe(deadBefore)
})

test('UX-7: an endpoint that hangs shows in the metrics, and holds up no round of the reconciler', async () => {
  const { database } = stage.runtime
  inngest.behave('hang')
  const job = await endedJob()
  await database.outbox.updateMany({ where: { jobId: job.id, doneAt: null }, data: { nextAttemptAt: new Date(0) } })
  expect(await gauge('offshoot_outbox_due')).toBeGreaterThan(0)
  const reconciler = startReconciler(stage.runtime, { holder: 'r' })
  try {
    // It has begun to tell, and waits for the endpoint.
    await waitUntil(async () => ((await entryOf(job.id))?.nextAttemptAt.getTime() ?? 0) > Date.now())
    const late = await spawnJob(stage.runtime, 'alice')
    await database.agentJob.update({ where: { id: late.id }, data: { deadlineAt: new Date(0) } })
    await waitUntil(async () => (await readJob(stage, late.id)).state === 'failed', { within: 3_000 })
    expect(await entryOf(job.id)).toMatchObject({ doneAt: null, attempts: 0 })
  } finally {
    await reconciler.stop()
  }
})

test('UX-7: with Inngest off nothing is sent, and nothing waits to be', async () => {
  const config = loadConfig({ ...stage.environment, INNGEST_EVENT_KEY: '', INNGEST_SIGNING_KEY: '' })
  const runtime = openRuntime({ ...stage.runtime, config, name: 'off' })
  const job = await endedJob(COMPLETED, runtime)
  await waitUntil(async () => (await entryOf(job.id))?.doneAt !== null)
  expect(inngest.received).toEqual([])
  expect(await readJob(stage, job.id)).toMatchObject({ state: 'completed', completionEventFired: false })
  await runtime.close()
})
