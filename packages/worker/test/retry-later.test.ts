// A provider that wants us to wait longer than a slot should be held. Everything here runs through one slot.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { abort, endOf, eventsOf, readJob, runRoot, spawnRoot } from '@offshoot/testing/agents'
import { type RawModel, type RawReply, type RawScript, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { environment: { WORKER_CONCURRENCY: '1' } })
  await stage.putBot('bot')
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

/** A step with a text and a tool call, as the first of two. */
const firstStep: RawScript = (reply) => {
  reply.text('Let me look.')
  reply.call('checkAgent', { jobId: 'nothing' }, 'call_check')
  reply.finish()
}
const refuses = (status: number, seconds: number) => (reply: RawReply) =>
  reply.status(status, { message: 'later' }, { 'retry-after': String(seconds) })
const limited = (seconds: number) => refuses(429, seconds)

async function untilWaiting(jobId: string) {
  return waitUntil(async () => {
    const job = await readJob(stage, jobId)
    return job.waitingOn === 'retry' && job
  })
}

/** Lets the provider's time pass. */
async function passWait(jobId: string) {
  await stage.runtime.database.agentJob.update({ where: { id: jobId }, data: { waitUntil: new Date(0) } })
}

test('COST-9: a long Retry-After before any output makes the job wait without a slot; then that step alone is made', async () => {
  // The SDK itself takes no Retry-After of a minute or more for true.
  raw.answer('busy provider', firstStep, limited(120), says('there you are'))
  raw.answer('meanwhile', says('I had the slot'))
  const { id } = await spawnRoot(stage, 'bot', 'busy provider')
  const waiting = await untilWaiting(id)
  expect(waiting).toMatchObject({ state: 'running', claimToken: null, workerId: null, stepRetries: 1, steps: 1 })
  const waitMs = (waiting.waitUntil?.getTime() ?? 0) - Date.now()
  expect(waitMs).toBeGreaterThan(110_000)
  expect(waitMs).toBeLessThanOrEqual(120_000)
  expect(await runRoot(stage, 'bot', 'meanwhile')).toMatchObject({ state: 'completed', result: 'I had the slot' })
  expect(raw.requests('busy provider')).toHaveLength(2)
  await passWait(id)
  expect(await endOf(stage, id)).toMatchObject({
    state: 'completed',
    result: 'there you are',
    stepRetries: 0,
    steps: 2,
  })
  expect(raw.requests('busy provider')).toHaveLength(3)
  expect(await eventsOf(stage, id)).toEqual(['spawned', 'waiting', 'woken', 'ended'])
})

test('COST-9: the fourth refusal gives the slot back, too, for as long as the provider says', async () => {
  const unavailable = refuses(503, 0)
  raw.answer('refused again', unavailable, unavailable, unavailable, limited(120), says('at last'))
  raw.answer('in between', says('I had the slot'))
  const { id } = await spawnRoot(stage, 'bot', 'refused again')
  const waiting = await untilWaiting(id)
  expect(waiting).toMatchObject({ state: 'running', claimToken: null, workerId: null, stepRetries: 1 })
  const waitMs = (waiting.waitUntil?.getTime() ?? 0) - Date.now()
  expect(waitMs).toBeGreaterThan(110_000)
  expect(waitMs).toBeLessThanOrEqual(120_000)
  expect(await runRoot(stage, 'bot', 'in between')).toMatchObject({ result: 'I had the slot' })
  await passWait(id)
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'at last', steps: 1 })
  expect(raw.requests('refused again')).toHaveLength(5)
})

test.each([
  ['429 that says so', 429],
  ['503 that says so', 503],
])(
  'COST-9: a job whose tries were used up by a %s for a second waits for the next without a slot',
  async (message, status) => {
    const again = refuses(status, 1)
    raw.answer(message, again, again, again, again, says('there you are'))
    const { id } = await spawnRoot(stage, 'bot', message)
    expect(await untilWaiting(id)).toMatchObject({ claimToken: null, workerId: null, stepRetries: 1 })
    expect(raw.requests(message)).toHaveLength(4)
    await passWait(id)
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'there you are' })
  },
)

test('COST-9: a job that waits for its provider can be aborted at once', async () => {
  raw.answer('never mind', limited(30))
  const { id } = await spawnRoot(stage, 'bot', 'never mind')
  await untilWaiting(id)
  expect(await abort(stage, id)).toMatchObject({ state: 'aborted' })
  expect(raw.requests('never mind')).toHaveLength(1)
})

test('COST-9: a step is put off ten times at the most', async () => {
  raw.answer('always busy', limited(30))
  const { id } = await spawnRoot(stage, 'bot', 'always busy')
  expect(await untilWaiting(id)).toMatchObject({ stepRetries: 1 })
  await stage.runtime.database.agentJob.update({ where: { id }, data: { stepRetries: 9, waitUntil: new Date(0) } })
  await waitUntil(() => raw.requests('always busy').length === 2)
  expect(await untilWaiting(id)).toMatchObject({ stepRetries: 10 })
  await passWait(id)
  expect(await endOf(stage, id)).toMatchObject({ state: 'failed', reason: 'model_rate_limited' })
  expect(raw.requests('always busy')).toHaveLength(3)
})
