// An operator's retry: a failed or aborted job goes on from its journal as a new generation.
import { abort, eventsOf, openConvo, readJob, startTurnOf } from '@offshoot/testing/agents'
import { claimNext, claimOf, COMPLETED, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { RetryInput } from '../src/contracts/retry.ts'
import type { ClaimedJob, Ending } from '../src/db/agent-jobs.ts'
import { loadSteps, storeModelOutput, storeWholeStep } from '../src/db/journal.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { followAgent } from '../src/operations/follow-agent.ts'
import { startReconciler } from '../src/operations/reconcile.ts'
import { retryAgent } from '../src/operations/retry-agent.ts'
import { insertSteer } from '../src/operations/steer-agent.ts'
import { lockTree, transact } from '../src/operations/transact.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ environment: { MAX_ACTIVE_JOBS_PER_USER: '1000' } })
  await stage.putBot('writer')
})
afterAll(() => stage.close())

const FAILED: Ending = { state: 'failed', reason: 'model_auth', result: 'so far', error: 'No.', partial: true }
const failing = (reason: Ending['reason']): Ending => ({ ...FAILED, reason })

const claimed = async (more: Parameters<typeof spawnJob>[2] = {}) =>
  claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice', more)).id)
const finish = (job: ClaimedJob, ending: Ending = FAILED, text?: string) =>
  finishAgent(stage.runtime, job, {
    guard: claimOf(job),
    ending,
    ...(text === undefined ? {} : { message: { parts: [{ type: 'text' as const, text }] } }),
  })
const retry = (jobId: string, more: Omit<RetryInput, 'jobId'> = {}, userId = 'alice') =>
  retryAgent(stage.runtime, { userId, admin: false }, { jobId, ...more }, userId)

/** Stores a whole step of 10 and 5 tokens that said `text`. */
async function storeStep(job: ClaimedJob, index: number, text: string, inboxSeqs: bigint[] = []) {
  const usage = { inputTokens: 10, outputTokens: 5, reasoningTokens: 1, totalTokens: 15 }
  const output = { index, generation: job.generation, parts: [], usage, finishReason: 'stop', elapsedMs: 1, inboxSeqs }
  await storeModelOutput(stage.runtime.database, claimOf(job), output)
  const messages = [{ role: 'assistant' as const, content: [{ type: 'text' as const, text }] }]
  await storeWholeStep(stage.runtime.database, claimOf(job), index, messages)
}

/** A job that failed after one step. */
async function failedJob(ending: Ending = FAILED, more: Parameters<typeof spawnJob>[2] = {}) {
  const job = await claimed(more)
  await storeStep(job, 0, 'step 1')
  await finish(job, ending)
  return job
}

describe('what a retry does', () => {
  test('STATE-16: a failed job goes on as its next generation, with its steps, and what it cost counts on', async () => {
    const job = await claimed()
    await storeStep(job, 0, 'step 1')
    await stage.runtime.database.agentJob.update({
      where: { id: job.id },
      data: { crashes: 3, stepRetries: 2, completionEventFired: true },
    })
    await finish(job, { ...FAILED, errorDetail: { status: 401 } })
    expect(await retry(job.id)).toMatchObject({ kind: 'retried', job: { id: job.id, generation: 2 } })
    expect(await readJob(stage, job.id)).toMatchObject({
      state: 'pending',
      generation: 2,
      attempt: 1,
      deliverySeq: 2,
      steps: 1,
      totalTokens: 15n,
      reason: null,
      result: null,
      error: null,
      errorDetail: null,
      partial: false,
      finishedAt: null,
      claimToken: null,
      workerId: null,
      crashes: 0,
      stepRetries: 0,
      completionEventFired: false,
    })
    expect(await eventsOf(stage, job.id)).toEqual(['spawned', 'ended', 'retried'])
    await waitUntil(() => stage.runtime.deliveries.lane('default').getJob(`${job.id}-2`))
    const again = await claimNext(stage.runtime, job.id)
    await storeStep(again, 1, 'step 2')
    await finish(again, COMPLETED)
    expect(await readJob(stage, job.id)).toMatchObject({
      state: 'completed',
      generation: 2,
      attempt: 2,
      steps: 2,
      inputTokens: 20n,
      outputTokens: 10n,
      reasoningTokens: 2n,
      totalTokens: 30n,
    })
    expect((await loadSteps(stage.runtime.database, job.id)).map((step) => step.responseMessages)).toMatchObject([
      [{ content: [{ text: 'step 1' }] }],
      [{ content: [{ text: 'step 2' }] }],
    ])
  })

  test('the deadline begins anew with the same length, or with the one that is given', async () => {
    const { id } = await failedJob(FAILED, { timeoutSeconds: 120 })
    await stage.runtime.database.agentJob.update({ where: { id }, data: { deadlineAt: new Date(0) } })
    await retry(id)
    const again = await claimNext(stage.runtime, id)
    expect(again.msLeft).toBeGreaterThan(110_000)
    expect(again.msLeft).toBeLessThanOrEqual(120_000)
    await finish(again)
    await retry(id, { timeoutSeconds: 600 })
    const longer = await claimNext(stage.runtime, id)
    expect(longer.timeoutMs).toBe(600_000)
    expect(longer.msLeft).toBeGreaterThan(590_000)
  })

  test('an aborted job loses its abort wish and can be claimed and aborted again', async () => {
    const { id } = await spawnJob(stage.runtime, 'alice')
    expect(await abort(stage, id, 'wrong poem')).toMatchObject({ state: 'aborted' })
    await retry(id)
    expect(await readJob(stage, id)).toMatchObject({
      state: 'pending',
      abortRequestedAt: null,
      abortRequestedBy: null,
      abortReason: null,
      abortText: null,
    })
    expect(await claimNext(stage.runtime, id)).toMatchObject({ state: 'running', generation: 2 })
    await abort(stage, id)
    expect(await readJob(stage, id)).toMatchObject({ state: 'running', abortRequestedBy: 'alice' })
  })

  test('the attempt that had ended the job holds nothing any more', async () => {
    const job = await failedJob()
    await retry(job.id)
    await claimNext(stage.runtime, job.id)
    expect(await finish(job, COMPLETED)).toBeNull()
    await storeStep(job, 1, 'late')
    expect(await readJob(stage, job.id)).toMatchObject({ state: 'running', steps: 1, totalTokens: 15n })
  })

  test.each(['output_limit', 'content_filter', 'empty_output', 'invalid_tool_input'] as const)(
    'after %s the last step is made again: its output goes, its messages are unread, its cost stays',
    async (reason) => {
      const { database } = stage.runtime
      const job = await claimed()
      await storeStep(job, 0, 'step 1')
      await transact(stage.runtime, async (tx) => {
        await lockTree(tx, job.rootJobId)
        await insertSteer(tx, job.id, { key: `k:${job.id}`, text: 'shorter', actorId: 'alice' })
      })
      const { seq } = await database.inboxItem.findFirstOrThrow({ where: { jobId: job.id } })
      await storeStep(job, 1, 'too lo', [seq])
      await database.agentToolCall.create({
        data: { jobId: job.id, stepIndex: 1, toolCallId: 'call_1', toolName: 'checkAgent' },
      })
      await finish(job, failing(reason))
      await retry(job.id)
      expect(await readJob(stage, job.id)).toMatchObject({ state: 'pending', steps: 1, totalTokens: 30n })
      expect((await loadSteps(database, job.id)).map((step) => step.index)).toEqual([0])
      expect(await database.agentToolCall.count({ where: { jobId: job.id } })).toBe(0)
      expect(await database.inboxItem.findFirst({ where: { seq } })).toMatchObject({ consumedAtStep: null })
      await storeStep(await claimNext(stage.runtime, job.id), 1, 'short')
      expect(await readJob(stage, job.id)).toMatchObject({ steps: 2, totalTokens: 45n })
    },
  )

  test('after any other reason every stored step stays', async () => {
    const { id } = await failedJob(failing('timeout_total'))
    await retry(id)
    expect(await readJob(stage, id)).toMatchObject({ steps: 1 })
  })

  test('the new answer takes the place of the old one in the convo', async () => {
    const { database } = stage.runtime
    const job = await claimed()
    await storeStep(job, 0, 'Half a po')
    await finish(job, FAILED, 'Half a po')
    await retry(job.id)
    const again = await claimNext(stage.runtime, job.id)
    await storeStep(again, 1, 'A poem.')
    await finish(again, COMPLETED, 'A poem.')
    const messages = await database.aiMessage.findMany({ where: { convoId: job.convoId }, orderBy: { seq: 'asc' } })
    expect(messages).toMatchObject([
      { seq: 1, role: 'user' },
      { seq: 2, role: 'assistant', id: job.id, parts: [{ text: 'A poem.' }], usage: { totalTokens: 30 } },
    ])
  })

  test('each generation tells of its own end', async () => {
    const job = await failedJob(FAILED, { completionEvent: { name: 'poem/written' } })
    await retry(job.id)
    await finish(await claimNext(stage.runtime, job.id), COMPLETED)
    const told = await stage.runtime.database.outbox.findMany({
      where: { jobId: job.id, kind: { in: ['completionEvent', 'ended'] } },
      orderBy: { id: 'asc' },
    })
    expect(told.map((entry) => entry.key)).toEqual([
      `ended:${job.id}:1`,
      `event:agent-job-${job.id}-1`,
      `ended:${job.id}:2`,
      `event:agent-job-${job.id}-2`,
    ])
    expect(told[3]?.payload).toMatchObject({ id: `agent-job-${job.id}-2`, data: { state: 'completed' } })
  })

  test('a viewer that comes after the retry follows it beyond the end that the job had before', async () => {
    const { runtime } = stage
    const job = await claimed()
    const { id } = job
    const text = (generation: number, attempt: number, delta: string) =>
      runtime.liveStreams.append(id, {
        generation,
        attempt,
        number: 1,
        chunks: [{ type: 'text-delta', id: 'x', delta }],
      })
    await text(1, 1, 'one ')
    await finish(job)
    await waitUntil(async () => (await runtime.liveStreams.readTail(id)).at(-1)?.end === true)
    await retry(id)
    const seen: string[] = []
    const viewer = (async () => {
      for await (const { chunk } of followAgent(runtime, id))
        seen.push(chunk.type === 'text-delta' ? chunk.delta : chunk.type)
    })()
    await waitUntil(() => seen.length > 0)
    const again = await claimNext(runtime, id)
    await text(2, 2, 'two')
    await finish(again, COMPLETED)
    await viewer
    expect(seen).toEqual(['one ', 'two', 'finish'])
  })

  test('STUCK-8: a job that timed out in the queue gets its whole queue time again', async () => {
    const { id } = await spawnJob(stage.runtime, 'alice', { timeoutSeconds: 80_000 })
    const shift = (column: 'createdAt' | 'deadlineAt') =>
      stage.runtime.database.$executeRawUnsafe(
        `update "offshoot"."AgentJob" set "${column}" = "${column}" - interval '2 hours' where "id" = $1`,
        id,
      )
    const reconciler = startReconciler(stage.runtime, { holder: 'retry' })
    try {
      await shift('createdAt')
      await waitUntil(async () => (await readJob(stage, id)).reason === 'timeout_queue')
      await retry(id)
      await twoRounds()
      expect(await readJob(stage, id)).toMatchObject({ state: 'pending', attempt: 0 })
      await shift('deadlineAt')
      await waitUntil(async () => (await readJob(stage, id)).reason === 'timeout_queue')
    } finally {
      await reconciler.stop()
    }
  })
})

/** Resolves when the reconciler has looked at every job twice: within a round their order is open. */
async function twoRounds(): Promise<void> {
  for (let round = 0; round < 2; round += 1) {
    const { id } = await spawnJob(stage.runtime, 'alice')
    await stage.runtime.database.agentJob.update({ where: { id }, data: { deadlineAt: new Date(0) } })
    await waitUntil(async () => (await readJob(stage, id)).reason === 'timeout_total')
  }
}

describe('what a retry refuses', () => {
  test.each(['pending', 'running', 'completed'] as const)('a %s job', async (state) => {
    const { id } = await spawnJob(stage.runtime, 'alice')
    if (state !== 'pending') {
      const job = await claimNext(stage.runtime, id)
      if (state === 'completed') await finish(job, COMPLETED)
    }
    const before = await readJob(stage, id)
    expect(await retry(id)).toMatchObject({
      kind: 'refused',
      refusal: {
        reason: 'invalid_request',
        error: `Only a failed or aborted job can be retried; this one is ${state}.`,
      },
    })
    expect(await readJob(stage, id)).toEqual(before)
  })

  test('SEC-1: a foreign job, exactly like one that does not exist; an admin may', async () => {
    const { id } = await failedJob()
    const before = await readJob(stage, id)
    expect(await retry(id, {}, 'mallory')).toEqual(await retry('unknown', {}, 'mallory'))
    expect(await readJob(stage, id)).toEqual(before)
    const admin = await retryAgent(stage.runtime, { userId: 'root', admin: true }, { jobId: id }, 'root')
    expect(admin).toMatchObject({ kind: 'retried' })
    const events = await stage.runtime.database.agentEvent.findMany({ where: { jobId: id, kind: 'retried' } })
    expect(events).toMatchObject([{ actorId: 'root', data: { generation: 2, from: 'failed', reason: 'model_auth' } }])
  })

  test('STATE-16: a job that has used up its steps, unless it gets more', async () => {
    const { id } = await failedJob(FAILED, { overrides: { maxSteps: 1 } })
    expect(await retry(id)).toMatchObject({
      kind: 'refused',
      refusal: { error: 'The job has made 1 of 1 steps. Give a larger maxSteps to retry it.' },
    })
    expect(await readJob(stage, id)).toMatchObject({ state: 'failed', generation: 1 })
    expect(await retry(id, { maxSteps: 2 })).toMatchObject({ kind: 'retried', job: { maxSteps: 2 } })
  })

  test('the second of two at once, 30 times', async () => {
    for (let round = 0; round < 30; round += 1) {
      const { id } = await failedJob()
      const answers = await Promise.all([retry(id), retry(id)])
      expect(answers.map((answer) => answer.kind).sort()).toEqual(['refused', 'retried'])
      expect(await readJob(stage, id)).toMatchObject({ state: 'pending', generation: 2, deliverySeq: 2 })
      expect(await eventsOf(stage, id)).toEqual(['spawned', 'ended', 'retried', 'refused'])
    }
  })

  test('a turn of a convo that is busy with another one, until that has ended', async () => {
    const convoId = await openConvo(stage, 'writer')
    const first = await claimNext(stage.runtime, await startTurnOf(stage, convoId, 'one'))
    await finish(first)
    const second = await claimNext(stage.runtime, await startTurnOf(stage, convoId, 'two'))
    expect(await retry(first.id)).toEqual({ kind: 'busy' })
    expect(await readJob(stage, first.id)).toMatchObject({ state: 'failed', generation: 1 })
    await finish(second, COMPLETED)
    expect(await retry(first.id)).toMatchObject({ kind: 'retried' })
  })
})
