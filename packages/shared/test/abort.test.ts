// An abort: a wish for the whole subtree, obeyed at once where no worker holds the job, and an answer that is true.
import { eventsOf, readJob } from '@offshoot/testing/agents'
import {
  claimNext,
  claimOf,
  COMPLETED,
  spawnChild,
  spawnChildren,
  spawnJob,
} from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { storeModelOutput, storeWholeStep } from '../src/db/journal.ts'
import { abortAgent, requestAbort } from '../src/operations/abort-agent.ts'
import { checkAgent } from '../src/operations/check-agent.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { handBack } from '../src/operations/hand-back.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage()
  await stage.putBot('writer')
})
afterAll(() => stage.close())

const alice = { userId: 'alice', admin: false }
const abort = (jobId: string, reason?: string) =>
  abortAgent(stage.runtime, alice, { jobId, ...(reason === undefined ? {} : { reason }) }, 'alice')

/** Once everything that had to be told is told: is the job's latest delivery in Redis? */
async function hasDelivery(jobId: string): Promise<boolean> {
  const { database, deliveries } = stage.runtime
  await waitUntil(async () => (await database.outbox.count({ where: { jobId, doneAt: null } })) === 0)
  const { deliverySeq } = await readJob(stage, jobId)
  return (await deliveries.lane('default').getJob(`${jobId}-${deliverySeq}`)) !== undefined
}

test('STUCK-5: a queued job is aborted at once, with its delivery removed', async () => {
  const job = await spawnJob(stage.runtime, 'alice')
  expect(await hasDelivery(job.id)).toBe(true)
  expect(await abort(job.id, 'not needed')).toEqual({ jobId: job.id, state: 'aborted', abortedDescendants: 0 })
  expect(await hasDelivery(job.id)).toBe(false)
  expect(await readJob(stage, job.id)).toMatchObject({
    state: 'aborted',
    reason: 'aborted_by_user',
    error: 'not needed',
    abortRequestedBy: 'alice',
    partial: false,
    result: null,
  })
  expect(await eventsOf(stage, job.id)).toEqual(['spawned', 'abort-requested', 'ended'])
  await expect(claimNext(stage.runtime, job.id)).rejects.toThrow('could not be claimed')
})

test('a second abort says that the job had ended, and changes nothing', async () => {
  const job = await spawnJob(stage.runtime, 'alice')
  await abort(job.id, 'first')
  const before = await readJob(stage, job.id)
  expect(await abort(job.id, 'second')).toEqual({
    jobId: job.id,
    state: 'aborted',
    abortedDescendants: 0,
    note: 'The job had ended before: aborted. Nothing was changed.',
  })
  expect(await readJob(stage, job.id)).toEqual(before)
  expect(await eventsOf(stage, job.id)).toEqual(['spawned', 'abort-requested', 'ended'])
})

test('the abort of a completed job answers with its true state and its result', async () => {
  const job = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice')).id)
  await finishAgent(stage.runtime, job, { guard: claimOf(job), ending: COMPLETED })
  expect(await abort(job.id)).toEqual({
    jobId: job.id,
    state: 'completed',
    abortedDescendants: 0,
    partialResult: 'done',
    note: 'The job had ended before: completed. Nothing was changed.',
  })
})

test('a running job that does not obey in 5 s is running, with the wish stored', async () => {
  const job = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice')).id)
  const before = performance.now()
  expect(await abort(job.id, 'stop it')).toEqual({
    jobId: job.id,
    state: 'running',
    abortedDescendants: 0,
    note: 'The wish to abort is stored; the job has not obeyed yet and will.',
  })
  expect(performance.now() - before).toBeGreaterThan(4_900)
  expect(await readJob(stage, job.id)).toMatchObject({
    state: 'running',
    abortReason: 'aborted_by_user',
    abortText: 'stop it',
  })
})

test('a running job that completes before it obeys is completed, and the abort says so without delay', async () => {
  const job = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice')).id)
  const answer = abort(job.id)
  await waitUntil(async () => (await readJob(stage, job.id)).abortRequestedAt !== null)
  await finishAgent(stage.runtime, job, { guard: claimOf(job), ending: COMPLETED })
  const ended = performance.now()
  expect(await answer).toEqual({
    jobId: job.id,
    state: 'completed',
    abortedDescendants: 0,
    partialResult: 'done',
    note: 'The job ended as completed before it could be aborted.',
  })
  expect(performance.now() - ended).toBeLessThan(1_000)
})

test('COST-1: an abort takes the whole subtree along: queued, waiting and running jobs of every depth', async () => {
  const { runtime } = stage
  const root = await claimNext(runtime, (await spawnJob(runtime, 'alice')).id)
  const completed = await claimNext(runtime, (await spawnChild(runtime, root)).id)
  await finishAgent(runtime, completed, { guard: claimOf(completed), ending: COMPLETED })
  const { children } = await spawnChildren(runtime, root, [{ mode: 'sync' }, {}, { mode: 'sync' }], 1)
  const [waitingSync, queued, runningSync] = children.map((child) => child.id)
  const waiting = await claimNext(runtime, waitingSync ?? '')
  const running = await claimNext(runtime, runningSync ?? '')
  const below = await spawnChild(runtime, waiting, { mode: 'sync' })
  const ofRunning = await spawnChild(runtime, running)
  expect(await readJob(stage, root.id)).toMatchObject({ state: 'running', waitingOn: 'children' })
  expect(await readJob(stage, waiting.id)).toMatchObject({ state: 'running', waitingOn: 'children' })

  expect(await abort(root.id, 'enough')).toEqual({ jobId: root.id, state: 'aborted', abortedDescendants: 5 })

  for (const id of [waiting.id, queued ?? '', below.id, ofRunning.id])
    expect(await readJob(stage, id)).toMatchObject({ state: 'aborted', reason: 'aborted_by_parent', error: 'enough' })
  for (const id of [queued ?? '', below.id, ofRunning.id]) expect(await hasDelivery(id)).toBe(false)
  expect(await readJob(stage, root.id)).toMatchObject({ state: 'aborted', reason: 'aborted_by_user', error: 'enough' })
  expect(await readJob(stage, completed.id)).toMatchObject({ state: 'completed', abortRequestedAt: null })
  expect(await readJob(stage, running.id)).toMatchObject({ state: 'running', abortReason: 'aborted_by_parent' })
  const obeyed = await finishAgent(runtime, running, {
    guard: claimOf(running),
    ending: { state: 'aborted', reason: 'aborted_by_parent', result: null, partial: false },
  })
  expect(obeyed?.state).toBe('aborted')
  // The end of its last child wakes nobody any more.
  expect(await readJob(stage, root.id)).toMatchObject({ state: 'aborted' })
})

test('a waiting job that is aborted together with its children is not woken by their ends', async () => {
  const { runtime } = stage
  const root = await claimNext(runtime, (await spawnJob(runtime, 'alice')).id)
  await spawnChild(runtime, root, { mode: 'sync' })
  await abort(root.id)
  expect(await eventsOf(stage, root.id)).toEqual(['spawned', 'waiting', 'abort-requested', 'ended'])
  expect(await hasDelivery(root.id)).toBe(false)
})

test('an async child spawned to continue outlives the abort of its parent, with all below it', async () => {
  const { runtime } = stage
  const root = await claimNext(runtime, (await spawnJob(runtime, 'alice')).id)
  const survivor = await claimNext(runtime, (await spawnChild(runtime, root, { onParentEnd: 'continue' })).id)
  const below = await spawnChild(runtime, survivor)
  const ends = await spawnChild(runtime, root, {}, 1)
  const held = requestAbort(runtime, root, { by: 'alice', reason: 'aborted_by_user', text: null })
  expect((await held).abortedDescendants).toBe(1)
  await finishAgent(runtime, root, {
    guard: claimOf(root),
    ending: { state: 'aborted', reason: 'aborted_by_user', result: null, partial: false },
  })
  expect(await readJob(stage, ends.id)).toMatchObject({ state: 'aborted' })
  expect(await readJob(stage, survivor.id)).toMatchObject({ state: 'running', abortRequestedAt: null })
  expect(await readJob(stage, below.id)).toMatchObject({ state: 'pending', abortRequestedAt: null })
})

test('COST-1: a parent that fails ends its async children; one that completes leaves them alone', async () => {
  const { runtime } = stage
  for (const [state, childState] of [
    ['failed', 'aborted'],
    ['completed', 'pending'],
  ] as const) {
    const parent = await claimNext(runtime, (await spawnJob(runtime, 'alice')).id)
    const child = await spawnChild(runtime, parent)
    await finishAgent(runtime, parent, {
      guard: claimOf(parent),
      ending: { ...COMPLETED, state, reason: state === 'failed' ? 'model_auth' : 'completed' },
    })
    expect(await readJob(stage, child.id)).toMatchObject({ state: childState })
  }
})

/** Gives a held job one finished step. */
async function makeStep(job: Awaited<ReturnType<typeof claimNext>>, text: string): Promise<void> {
  const usage = { inputTokens: 5, outputTokens: 7, reasoningTokens: null, totalTokens: 12 }
  await storeModelOutput(stage.runtime.database, claimOf(job), {
    index: 0,
    generation: 1,
    parts: [],
    usage,
    finishReason: 'tool-calls',
    elapsedMs: 5,
    inboxSeqs: [],
  })
  await storeWholeStep(stage.runtime.database, claimOf(job), 0, [
    { role: 'assistant', content: [{ type: 'text', text }] },
  ])
}

test('LOSS-3: the abort of a waiting job keeps its text, its steps and its usage', async () => {
  const { runtime } = stage
  const job = await claimNext(runtime, (await spawnJob(runtime, 'alice')).id)
  await makeStep(job, 'Half of it: ')
  await spawnChild(runtime, job, { mode: 'sync' })
  expect(await abort(job.id)).toMatchObject({ state: 'aborted', partialResult: 'Half of it: ', abortedDescendants: 1 })
  expect(await checkAgent(runtime, alice, { jobId: job.id, includePartial: false, waitSeconds: 0 })).toMatchObject({
    state: 'aborted',
    reason: 'aborted_by_user',
    result: 'Half of it: ',
    partial: true,
    steps: 1,
    usage: { inputTokens: 5, outputTokens: 7, reasoningTokens: null, totalTokens: 12 },
    messages: [{ role: 'user' }, { role: 'assistant', parts: [{ type: 'step-start' }, { text: 'Half of it: ' }] }],
  })
})

test('LOSS-3: so does the end of a job with an abort wish that its worker hands back', async () => {
  const { runtime } = stage
  const job = await claimNext(runtime, (await spawnJob(runtime, 'alice')).id)
  await makeStep(job, 'Half of it: ')
  await requestAbort(runtime, job, { by: 'alice', reason: 'aborted_by_user', text: 'enough' })
  await handBack(runtime, job, claimOf(job), 'handed-back')
  expect(await readJob(stage, job.id)).toMatchObject({
    state: 'aborted',
    reason: 'aborted_by_user',
    error: 'enough',
    result: 'Half of it: ',
    partial: true,
  })
  const ended = await runtime.database.agentEvent.findFirst({ where: { jobId: job.id, kind: 'ended' } })
  expect(ended?.actorId).toBe('alice')
})
