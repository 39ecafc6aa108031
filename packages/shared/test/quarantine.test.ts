// A job that ends its workers is quarantined; one that makes progress between their ends is not.
import { answerOf, childrenOf, eventsOf, readJob } from '@offshoot/testing/agents'
import { claimNext, claimOf, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { ClaimedJob } from '../src/db/agent-jobs.ts'
import { storeModelOutput, storeWholeStep } from '../src/db/journal.ts'
import { handBack, MAX_CRASHES } from '../src/operations/hand-back.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage()
  await stage.putBot('writer')
})
afterAll(() => stage.close())

const usage = { inputTokens: 10, outputTokens: 5, reasoningTokens: null, totalTokens: 15 }
const outputOf = (index: number) =>
  ({ index, generation: 1, parts: [], usage, finishReason: 'stop', elapsedMs: 1, inboxSeqs: [] }) as const

async function storeStep(job: ClaimedJob, index: number) {
  await storeModelOutput(stage.runtime.database, claimOf(job), outputOf(index))
  const messages = [{ role: 'assistant' as const, content: [{ type: 'text' as const, text: `step ${index + 1}` }] }]
  await storeWholeStep(stage.runtime.database, claimOf(job), index, messages)
}

/** A worker takes the job, does `work`, and is lost. */
async function loseWorker(jobId: string, work: (job: ClaimedJob) => Promise<unknown> = async () => undefined) {
  const workerId = `lost-${Math.random()}`
  const job = await claimNext(stage.runtime, jobId, workerId)
  await work(job)
  expect(await handBack(stage.runtime, job, { lostWorkerId: workerId }, 'worker-lost')).toBe(true)
}

test('STUCK-18: a job that loses five workers in a row without a stored step ends as worker_crash', async () => {
  const { id } = await spawnJob(stage.runtime, 'alice')
  await loseWorker(id, (job) => storeStep(job, 0))
  await loseWorker(id, (job) => spawnChild(stage.runtime, job, {}, 1))
  for (let crash = 3; crash <= MAX_CRASHES; crash += 1) {
    expect(await readJob(stage, id)).toMatchObject({ state: 'pending', crashes: crash - 1 })
    await loseWorker(id)
  }
  expect(await readJob(stage, id)).toMatchObject({
    state: 'failed',
    reason: 'worker_crash',
    result: 'step 1',
    partial: true,
    steps: 1,
    crashes: 5,
    error: 'The job ended its worker too often and is quarantined. (5 times in a row)',
  })
  expect(await answerOf(stage, id)).toMatchObject([{ type: 'step-start' }, { type: 'text', text: 'step 1' }])
  expect((await eventsOf(stage, id)).slice(-2)).toEqual(['worker-lost', 'ended'])
  expect(await childrenOf(stage, id)).toMatchObject([{ state: 'aborted', reason: 'aborted_by_parent' }])
})

test('STUCK-18: one that stores a step between its crashes goes on', async () => {
  const { id } = await spawnJob(stage.runtime, 'alice')
  for (let crash = 1; crash < MAX_CRASHES; crash += 1) await loseWorker(id)
  await loseWorker(id, (job) => storeStep(job, 0))
  expect(await readJob(stage, id)).toMatchObject({ state: 'pending', crashes: 1 })
  for (let crash = 2; crash < MAX_CRASHES; crash += 1) await loseWorker(id)
  expect(await readJob(stage, id)).toMatchObject({ state: 'pending', crashes: MAX_CRASHES - 1 })
})

test('STUCK-18: being handed back by a worker that stops is no crash', async () => {
  const { id } = await spawnJob(stage.runtime, 'alice')
  for (let round = 0; round < 2 * MAX_CRASHES; round += 1) {
    const job = await claimNext(stage.runtime, id)
    await handBack(stage.runtime, job, claimOf(job), 'handed-back')
  }
  expect(await readJob(stage, id)).toMatchObject({ state: 'pending', crashes: 0 })
})

test('STATE-18: a step that is stored again, one after the other or at once, adds its usage once', async () => {
  const { database } = stage.runtime
  const job = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice')).id)
  const store = (index: number) => storeModelOutput(database, claimOf(job), outputOf(index))
  const held = { held: true, abortRequested: false }
  expect([await store(0), await store(0)]).toMatchObject([held, held])
  expect(await readJob(stage, job.id)).toMatchObject({ steps: 1, inputTokens: 10n, totalTokens: 15n })
  for (let index = 1; index <= 30; index += 1)
    expect(await Promise.all([store(index), store(index), store(index)])).toMatchObject([held, held, held])
  expect(await readJob(stage, job.id)).toMatchObject({
    steps: 31,
    inputTokens: 310n,
    outputTokens: 155n,
    reasoningTokens: null,
    totalTokens: 465n,
  })
  expect(await database.agentStep.count({ where: { jobId: job.id } })).toBe(31)
})
