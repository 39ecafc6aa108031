// Completion events: sent through Inngest's SDK to a stub of its event endpoint, at least once, with the same id.
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { readJob } from '@offshoot/testing/agents'
import { claimNext, claimOf, COMPLETED, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { z } from 'zod'
import { loadConfig } from '../src/config.ts'
import type { Ending } from '../src/db/agent-jobs.ts'
import { requestAbort } from '../src/operations/abort-agent.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { retryAgent } from '../src/operations/retry-agent.ts'
import { openRuntime, type Runtime } from '../src/runtime.ts'

const eventSchema = z.object({ id: z.string(), name: z.string(), data: z.record(z.string(), z.unknown()) })
type Received = z.infer<typeof eventSchema>

let stage: TestStage
let endpoint: Server
let received: Received[] = []
/** What the endpoint does with a request: answers with a status, or never. */
let behaviour: number | 'hang' = 200
let baseUrl: string

beforeAll(async () => {
  endpoint = createServer((request, response) => {
    void text(request).then((body) => {
      if (behaviour === 'hang') return
      if (behaviour === 200) received.push(...z.array(eventSchema).parse(JSON.parse(body)))
      response.writeHead(behaviour, { 'content-type': 'application/json' })
      response.end(JSON.stringify(behaviour === 200 ? { ids: ['1'], status: 200 } : { error: 'no', status: behaviour }))
    })
  })
  await new Promise<void>((resolve) => endpoint.listen(0, '127.0.0.1', resolve))
  // It listens on TCP, so its address has a port.
  baseUrl = `http://127.0.0.1:${(endpoint.address() as AddressInfo).port}`
  stage = await openTestStage({
    environment: {
      INNGEST_BASE_URL: baseUrl,
      INNGEST_EVENT_KEY: 'test-key',
      INNGEST_SIGNING_KEY: 'signkey-test-00',
      LOG_LEVEL: 'silent',
    },
  })
  await stage.putBot('writer')
})
beforeEach(() => {
  received = []
  behaviour = 200
})
afterAll(async () => {
  await stage.close()
  endpoint.closeAllConnections()
  await new Promise((resolve) => endpoint.close(resolve))
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
  await waitUntil(() => received.length === 3)
  const states = new Map(
    received.map(({ id, name, data }) => [id, [name, data['ticket'], data['state'], data['reason']]]),
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

test('STATE-8 UX-7: an endpoint that refuses leaves the job alone; the same event goes out once it accepts', async () => {
  behaviour = 400
  const job = await endedJob()
  const failed = await waitUntil(async () => {
    const entry = await entryOf(job.id)
    return entry !== null && entry.attempts > 0 && entry
  })
  expect(failed).toMatchObject({ doneAt: null, deadAt: null, lastError: expect.any(String) })
  expect(await readJob(stage, job.id)).toMatchObject({ state: 'completed', completionEventFired: false })
  behaviour = 200
  await waitUntil(async () => {
    await stage.runtime.outbox.dispatchDue()
    return (await entryOf(job.id))?.doneAt !== null
  })
  expect(received.map((each) => each.id)).toEqual([`agent-job-${job.id}-1`])
  expect(await readJob(stage, job.id)).toMatchObject({ completionEventFired: true })
})

test('an event of a generation that comes late does not stand for that of the next one', async () => {
  behaviour = 400
  const job = await endedJob({ state: 'failed', reason: 'model_auth', result: null, error: 'No.', partial: false })
  await waitUntil(async () => ((await entryOf(job.id))?.attempts ?? 0) > 0)
  await retryAgent(stage.runtime, { userId: 'alice', admin: false }, { jobId: job.id }, 'alice')
  behaviour = 200
  await waitUntil(async () => {
    await stage.runtime.outbox.dispatchDue()
    return (await entryOf(job.id))?.doneAt !== null
  })
  expect(received).toMatchObject([{ id: `agent-job-${job.id}-1` }])
  expect(await readJob(stage, job.id)).toMatchObject({ generation: 2, completionEventFired: false })
  const again = await claimNext(stage.runtime, job.id)
  await finishAgent(stage.runtime, again, { guard: claimOf(again), ending: COMPLETED })
  await waitUntil(async () => (await readJob(stage, job.id)).completionEventFired)
  expect(received.at(-1)).toMatchObject({ id: `agent-job-${job.id}-2` })
})

test('UX-7: an endpoint that hangs delays nothing', async () => {
  behaviour = 'hang'
  const before = performance.now()
  const job = await endedJob()
  expect(performance.now() - before).toBeLessThan(2_000)
  expect(await readJob(stage, job.id)).toMatchObject({ state: 'completed', completionEventFired: false })
})

test('an event that is sent again has the same id', async () => {
  const job = await endedJob()
  await waitUntil(async () => (await entryOf(job.id))?.doneAt !== null)
  await stage.runtime.database.outbox.updateMany({
    where: { jobId: job.id },
    data: { doneAt: null, nextAttemptAt: new Date(0) },
  })
  await stage.runtime.outbox.dispatchDue()
  await waitUntil(() => received.filter((each) => each.data['jobId'] === job.id).length === 2)
  const ids = received.filter((each) => each.data['jobId'] === job.id).map((each) => each.id)
  expect(new Set(ids)).toEqual(new Set([`agent-job-${job.id}-1`]))
})

test('UX-7: with Inngest off nothing is sent, and nothing waits to be', async () => {
  const config = loadConfig({ ...stage.environment, INNGEST_EVENT_KEY: '', INNGEST_SIGNING_KEY: '' })
  const runtime = openRuntime({ ...stage.runtime, config, name: 'off' })
  const job = await endedJob(COMPLETED, runtime)
  await waitUntil(async () => (await entryOf(job.id))?.doneAt !== null)
  expect(received).toEqual([])
  expect(await readJob(stage, job.id)).toMatchObject({ state: 'completed', completionEventFired: false })
  await runtime.close()
})
