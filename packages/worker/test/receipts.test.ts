// What becomes of a message to a running job: delivered at a step, once and in order, or the job ended first.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { messageAgent } from '@offshoot/shared/operations/message-agent'
import { abort, endOf, eventsOf, readJob, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { type RawModel, says, startRawModel, ticking } from '@offshoot/testing/raw-model'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage
const alice = { userId: 'alice', admin: false }

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl)
  await stage.putBot('bot')
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const send = (jobId: string, message: string, options: { messageId?: string; waitSeconds?: number } = {}) =>
  messageAgent(stage.runtime, alice, { jobId, message }, 'alice', options)

/** A job whose first step goes on until the test ends it. */
async function working(message: string) {
  const step = Promise.withResolvers<undefined>()
  raw.answer(message, async (reply) => {
    reply.text('Working.')
    await step.promise
    reply.finish()
  })
  const job = await spawnRoot(stage, 'bot', message)
  await untilLiveText(stage, job.id, 'Working.')
  return { job, endStep: () => step.resolve(undefined) }
}

test('messages are read at the next step, in their order, and the receipt says at which', async () => {
  const { job, endStep } = await working('write a poem')
  raw.answer('and short', says('Done.'))
  expect(await send(job.id, 'make it sad', { messageId: 'm1' })).toEqual({ accepted: true })
  const second = send(job.id, 'and short', { messageId: 'm2', waitSeconds: 10 })
  endStep()
  expect(await second).toEqual({ accepted: true, deliveredAtStep: 1 })
  expect(await endOf(stage, job.id)).toMatchObject({ state: 'completed', result: 'Done.', steps: 2 })
  const said = JSON.stringify(raw.requests('and short')[0]?.body)
  expect(said.indexOf('make it sad')).toBeLessThan(said.indexOf('and short'))
  expect(said.split('make it sad')).toHaveLength(2)
})

test('a message with the id of an earlier one is that one, and its answer the receipt as it is then', async () => {
  const { job, endStep } = await working('write a play')
  raw.answer('in verse', says('Done.'))
  for (let times = 0; times < 3; times += 1)
    expect(await send(job.id, 'in verse', { messageId: 'm1' })).toEqual({ accepted: true })
  endStep()
  await endOf(stage, job.id)
  expect(await send(job.id, 'in verse', { messageId: 'm1' })).toEqual({ accepted: true, deliveredAtStep: 1 })
  expect((await eventsOf(stage, job.id)).filter((kind) => kind === 'steered')).toHaveLength(1)
})

test('a message that the job did not come to read says so; one to a job that has ended is not accepted', async () => {
  raw.answer('tick for ever', ticking)
  const { id } = await spawnRoot(stage, 'bot', 'tick for ever')
  await untilLiveText(stage, id, 'tick')
  const waiting = send(id, 'stop ticking', { messageId: 'm1', waitSeconds: 10 })
  await abort(stage, id)
  const reason = 'The job ended before it had read the message.'
  expect(await waiting).toEqual({ accepted: true, reason })
  expect(await send(id, 'stop ticking', { messageId: 'm1' })).toEqual({ accepted: true, reason })
  expect(await send(id, 'hello?')).toEqual({
    accepted: false,
    reason: 'The job has ended; nobody reads messages to it any more.',
  })
  expect(await readJob(stage, id)).toMatchObject({ state: 'aborted' })
})

test('SEC-1: a message to a foreign job is answered like one to an unknown job', async () => {
  const { job, endStep } = await working('keep to yourself')
  const bob = { userId: 'bob', admin: false }
  const ask = (jobId: string) => messageAgent(stage.runtime, bob, { jobId, message: 'hi' }, 'bob')
  expect(await ask(job.id)).toEqual({ accepted: false, reason: `Job ${job.id} not found.` })
  expect(await ask('unknown')).toEqual({ accepted: false, reason: 'Job unknown not found.' })
  endStep()
  expect(await endOf(stage, job.id)).toMatchObject({ state: 'completed', steps: 1 })
})
