// The claim: who gets it, and that nobody writes without it.
import { eventsOf, readJob } from '@offshoot/testing/agents'
import { claimNext, claimOf, COMPLETED, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { afterAll, beforeAll, expect, test } from 'vitest'
import {
  type Claim,
  claimJob,
  claimJobs,
  type ClaimedJob,
  endJob,
  makePending,
  storeWaitingJob,
} from '../src/db/agent-jobs.ts'
import {
  loadInbox,
  loadSteps,
  loadToolCalls,
  type ModelOutput,
  storeModelOutput,
  storeModelOutputs,
  storeToolEnd,
  storeToolStart,
  storeWholeStep,
} from '../src/db/journal.ts'
import { insertEventOnce, insertEventsOfAttempt } from '../src/db/events.ts'
import { STORED_FORMAT } from '../src/db/stored-value.ts'
import { newId } from '../src/ids.ts'
import { requestAbort } from '../src/operations/abort-agent.ts'
import { answerSpawnCalls } from '../src/operations/answer-spawn-calls.ts'
import { finishAgent, stayBeforeReturn } from '../src/operations/finish-agent.ts'
import { handBack } from '../src/operations/hand-back.ts'
import { insertSteer } from '../src/operations/steer-agent.ts'
import { transact } from '../src/operations/transact.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage()
  await stage.putBot('writer')
})
afterAll(() => stage.close())

const spawned = () => spawnJob(stage.runtime, 'alice')
const claimed = async () => claimNext(stage.runtime, (await spawned()).id)
const claim = (jobId: string, deliverySeq: number) =>
  claimJob(stage.runtime.database, { jobId, token: newId(), deliverySeq, workerId: 'w' })
const expire = (jobId: string) =>
  stage.runtime.database.$executeRaw`
    update "offshoot"."AgentJob" set "deadlineAt" = clock_timestamp() - interval '1 second' where "id" = ${jobId}`

test('a claim makes the job running, counts an attempt, and tells the milliseconds left', async () => {
  const { id } = await spawned()
  const first = await claim(id, 1)
  expect(first).toMatchObject({ state: 'running', attempt: 1, workerId: 'w', waitingOn: null })
  expect(first?.msLeft).toBeGreaterThan(3_590_000)
  expect(first?.msLeft).toBeLessThanOrEqual(3_600_000)
  expect(first?.startedAt).not.toBeNull()
})

test('LOSS-17: only the present delivery may claim: older, newer and repeated ones may not', async () => {
  const { id } = await spawned()
  expect(await claim(id, 0)).toBeNull()
  expect(await claim(id, 2)).toBeNull()
  const held = await claim(id, 1)
  expect(held).not.toBeNull()
  expect(await claim(id, 1)).toBeNull()
  await handBack(stage.runtime, await readJob(stage, id), { token: held?.claimToken ?? '' }, 'handed-back')
  expect(await claim(id, 1)).toBeNull()
  expect(await claim(id, 2)).toMatchObject({ attempt: 2, deliverySeq: 2, startedAt: held?.startedAt })
})

test('LOSS-9: a delivery without a row claims nothing', async () => {
  expect(await claim(newId(), 1)).toBeNull()
})

test('one of 20 simultaneous claims of a delivery succeeds', async () => {
  const { id } = await spawned()
  const claims = await Promise.all(Array.from({ length: 20 }, () => claim(id, 1)))
  expect(claims.filter((each) => each !== null)).toHaveLength(1)
  expect((await readJob(stage, id)).attempt).toBe(1)
})

test('STUCK-5: a job with an abort wish cannot be claimed', async () => {
  const { id } = await spawned()
  await stage.runtime.database.$executeRaw`
    update "offshoot"."AgentJob" set "abortRequestedAt" = clock_timestamp() where "id" = ${id}`
  expect(await claim(id, 1)).toBeNull()
})

test('a job past its deadline cannot be claimed', async () => {
  const { id } = await spawned()
  await expire(id)
  expect(await claim(id, 1)).toBeNull()
})

test('a job that has ended cannot be claimed', async () => {
  for (const state of ['completed', 'failed', 'aborted'] as const) {
    const { id } = await spawned()
    await endJob(stage.runtime.database, id, 'unclaimed', { ...COMPLETED, state })
    expect(await claim(id, 1)).toBeNull()
  }
})

const OUTPUT: ModelOutput = {
  index: 0,
  generation: 1,
  parts: [{ type: 'text-start', id: 't' }],
  usage: { inputTokens: 1, outputTokens: 2, reasoningTokens: null, totalTokens: 3 },
  finishReason: 'stop',
  elapsedMs: 1,
  inboxSeqs: [],
}
const CALL = { stepIndex: 0, toolCallId: 'c', toolName: 'search' }

/** Everything that an attempt writes, in the order in which it may. */
const WRITES: [string, (holder: Claim) => Promise<{ held: boolean; abortRequested: boolean }>][] = [
  ['a model output', (holder) => storeModelOutput(stage.runtime.database, holder, OUTPUT)],
  ['the start of a tool call', (holder) => storeToolStart(stage.runtime.database, holder, CALL)],
  [
    'the end of a tool call',
    (holder) => storeToolEnd(stage.runtime.database, holder, { ...CALL, outcome: { output: 1 } }),
  ],
  [
    'a whole step',
    (holder) => storeWholeStep(stage.runtime.database, holder, 0, [{ role: 'assistant', content: 'x' }]),
  ],
]

async function everythingOf(jobId: string) {
  const { database } = stage.runtime
  return {
    job: await readJob(stage, jobId),
    steps: await loadSteps(database, jobId),
    toolCalls: await loadToolCalls(database, jobId),
    inbox: await loadInbox(database, jobId),
    events: await eventsOf(stage, jobId),
    outbox: await database.outbox.findMany({ where: { jobId }, select: { key: true } }),
    children: await database.agentJob.count({ where: { parentJobId: jobId } }),
    messages: await database.aiMessage.count({ where: { jobId } }),
  }
}

test('the holder of the claim is told that it holds it, and whether somebody wants its end', async () => {
  const job = await claimed()
  for (const [, write] of WRITES) expect(await write(claimOf(job))).toMatchObject({ held: true, abortRequested: false })
  await requestAbort(stage.runtime, job, { by: 'alice', reason: 'aborted_by_user', text: null })
  for (const [, write] of WRITES) expect(await write(claimOf(job))).toMatchObject({ held: true, abortRequested: true })
})

/** Jobs whose first claim is stale: taken over by a new attempt, waiting, pending again, or ended. */
async function staleJobs(): Promise<[string, ClaimedJob][]> {
  const { runtime } = stage
  const [taken, waiting, pending, ended] = [await claimed(), await claimed(), await claimed(), await claimed()]
  for (const job of [taken, pending]) await handBack(runtime, job, { lostWorkerId: 'test-worker' }, 'worker-lost')
  await claimNext(runtime, taken.id, 'other-worker')
  await spawnChild(runtime, waiting, { mode: 'sync' })
  await finishAgent(runtime, ended, { guard: claimOf(ended), ending: COMPLETED })
  return [
    ['taken over', taken],
    ['waiting', waiting],
    ['pending again', pending],
    ['ended', ended],
  ]
}

test('STATE-7: no write of an attempt that has lost its claim changes anything', async () => {
  const { runtime } = stage
  const { database } = runtime
  for (const [how, job] of await staleJobs()) {
    const stale = claimOf(job)
    const before = await everythingOf(job.id)
    for (const [what, write] of WRITES)
      expect([how, what, await write(stale)]).toMatchObject([how, what, { held: false, abortRequested: false }])
    expect(await storeWaitingJob(database, stale, { on: 'retry', forMs: 1_000 })).toBe(false)
    expect(await makePending(database, job.id, stale)).toBeNull()
    expect(await handBack(runtime, job, stale, 'handed-back')).toBe(false)
    const spawn = { claim: stale, rootJobId: job.rootJobId, step: 5, originOf: () => expect.unreachable() }
    expect(await answerSpawnCalls(runtime, spawn, [])).toEqual({ kind: 'stopped' })
    // An attempt whose commit got no answer asks again: the row that it has ended itself is its own.
    const finished = await finishAgent(runtime, job, { guard: stale, ending: COMPLETED })
    expect([how, finished?.id]).toEqual([how, how === 'ended' ? job.id : undefined])
    expect(await finishAgent(runtime, job, { guard: stale, ending: { ...COMPLETED, state: 'failed' } })).toBeNull()
    expect(await everythingOf(job.id)).toEqual(before)
  }
})

test('STATE-7: an attempt that has lost its claim tells no history, and does not ask its job to stay', async () => {
  const { runtime } = stage
  const { database } = runtime
  const parent = await claimed()
  await spawnChild(runtime, parent, { notifyParent: true })
  await transact(runtime, (tx) =>
    insertSteer(tx, parent.id, { key: newId(), text: 'one more thing', actorId: 'alice' }),
  )
  await handBack(runtime, parent, { lostWorkerId: 'test-worker' }, 'worker-lost')
  await claimNext(runtime, parent.id, 'other-worker')
  const before = await everythingOf(parent.id)
  const stale = claimOf(parent)
  await insertEventOnce(database, { jobId: parent.id, kind: 'repeated-calls' }, { claim: stale })
  await insertEventsOfAttempt(database, stale, [{ kind: 'layer-failed' }])
  const parkTimeoutMs = 60_000
  expect(await stayBeforeReturn(runtime, parent, { guard: stale, parkTimeoutMs })).toBeUndefined()
  expect(await finishAgent(runtime, parent, { guard: stale, ending: COMPLETED, parkTimeoutMs })).toBeNull()
  expect(await everythingOf(parent.id)).toEqual(before)
})

test('STATE-7: a token that never was a claim writes nothing either', async () => {
  const job = await claimed()
  const before = await everythingOf(job.id)
  for (const [, write] of WRITES)
    expect(await write({ jobId: job.id, token: newId() })).toMatchObject({ held: false, abortRequested: false })
  expect(await finishAgent(stage.runtime, job, { guard: 'unclaimed', ending: COMPLETED })).toBeNull()
  expect(await everythingOf(job.id)).toEqual(before)
})

test('COST-1: with an abort wish a job neither waits nor spawns', async () => {
  const job = await claimed()
  await requestAbort(stage.runtime, job, { by: 'alice', reason: 'aborted_by_user', text: null })
  expect(await storeWaitingJob(stage.runtime.database, claimOf(job), { on: 'inbox', forMs: null })).toBe(false)
  const answer = await answerSpawnCalls(
    stage.runtime,
    { claim: claimOf(job), rootJobId: job.rootJobId, step: 0, originOf: () => expect.unreachable() },
    [],
  )
  expect(answer).toEqual({ kind: 'stopped' })
  expect(await readJob(stage, job.id)).toMatchObject({ state: 'running', waitingOn: null, claimToken: job.claimToken })
})

test('a wait never goes beyond the deadline', async () => {
  const job = await claimed()
  expect(await storeWaitingJob(stage.runtime.database, claimOf(job), { on: 'retry', forMs: 86_400_000 })).toBe(true)
  const row = await readJob(stage, job.id)
  expect(row.waitUntil).toEqual(row.deadlineAt)
  expect(row).toMatchObject({ state: 'running', waitingOn: 'retry', claimToken: null, workerId: null })
})

test('STATE-16: tokens of all attempts are summed, unknown ones change nothing, 64 bits are enough', async () => {
  const job = await claimed()
  const { database } = stage.runtime
  const unknown = { inputTokens: null, outputTokens: null, reasoningTokens: null, totalTokens: null }
  await storeModelOutput(database, claimOf(job), { ...OUTPUT, usage: unknown })
  expect(await readJob(stage, job.id)).toMatchObject({ steps: 1, inputTokens: null, totalTokens: null })
  const huge = { inputTokens: 3_000_000_000, outputTokens: 0, reasoningTokens: null, totalTokens: 3_000_000_000 }
  await storeModelOutput(database, claimOf(job), { ...OUTPUT, index: 1, usage: huge })
  await storeModelOutput(database, claimOf(job), { ...OUTPUT, index: 2, usage: { ...huge, totalTokens: Number.NaN } })
  expect(await readJob(stage, job.id)).toMatchObject({
    steps: 3,
    inputTokens: 6_000_000_000n,
    outputTokens: 0n,
    reasoningTokens: null,
    totalTokens: 3_000_000_000n,
  })
})

test('a job keeps the newest format that anything of it is stored in, from its spawn on', async () => {
  const job = await claimed()
  const { database } = stage.runtime
  const setFormat = (journalFormat: number) =>
    database.agentJob.update({ where: { id: job.id }, data: { journalFormat } })
  expect(await readJob(stage, job.id)).toMatchObject({ journalFormat: STORED_FORMAT })
  await setFormat(STORED_FORMAT - 1)
  await storeModelOutput(database, claimOf(job), OUTPUT)
  expect(await readJob(stage, job.id)).toMatchObject({ journalFormat: STORED_FORMAT })
  await setFormat(STORED_FORMAT + 1)
  await storeModelOutput(database, claimOf(job), { ...OUTPUT, index: 1 })
  expect(await readJob(stage, job.id)).toMatchObject({ journalFormat: STORED_FORMAT + 1 })
})

test('COST-3: a stored tool result is not overwritten by a second one', async () => {
  const job = await claimed()
  const { database } = stage.runtime
  await storeToolStart(database, claimOf(job), CALL)
  expect(await loadToolCalls(database, job.id)).toEqual([CALL])
  await storeToolEnd(database, claimOf(job), { ...CALL, outcome: { output: { first: 1n } } })
  await storeToolEnd(database, claimOf(job), { ...CALL, outcome: { error: new Error('late') } })
  await storeToolStart(database, claimOf(job), CALL)
  expect(await loadToolCalls(database, job.id)).toEqual([{ ...CALL, outcome: { output: { first: 1n } } }])
})

test('STATE-24: tool results null, false, 0, the empty text and none are told apart from an error', async () => {
  const job = await claimed()
  const { database } = stage.runtime
  const outputs = [null, false, 0, '', undefined]
  for (const [at, output] of outputs.entries())
    await storeToolEnd(database, claimOf(job), { ...CALL, toolCallId: `c${at}`, outcome: { output } })
  await storeToolEnd(database, claimOf(job), { ...CALL, toolCallId: 'e', outcome: { error: null } })
  const stored = new Map((await loadToolCalls(database, job.id)).map((call) => [call.toolCallId, call.outcome]))
  expect(outputs.map((_, at) => stored.get(`c${at}`))).toEqual([null, false, 0, '', null].map((output) => ({ output })))
  expect(stored.get('e')).toMatchObject({ error: { message: 'The tool threw no error.' } })
})

test('LOSS-7: U+0000 and half an emoji in outputs, inputs, results and errors are stored legibly', async () => {
  const job = await claimed()
  const { database } = stage.runtime
  const bad = 'a\u0000b\ud83d'
  const legible = 'a␀b\ufffd'
  await storeModelOutput(database, claimOf(job), {
    ...OUTPUT,
    parts: [
      { type: 'tool-call', toolCallId: 'c', toolName: 'search', input: JSON.stringify({ [bad]: bad }) },
      { type: 'text-delta', id: 't', delta: bad },
    ],
  })
  await storeToolEnd(database, claimOf(job), { ...CALL, outcome: { output: { [bad]: [bad] } } })
  await storeToolEnd(database, claimOf(job), { ...CALL, toolCallId: 'd', outcome: { error: new Error(bad) } })
  await storeWholeStep(database, claimOf(job), 0, [{ role: 'assistant', content: bad }])
  const ended = await finishAgent(stage.runtime, job, {
    guard: claimOf(job),
    ending: { ...COMPLETED, result: bad, error: bad, errorDetail: { cause: bad } },
    message: { parts: [{ type: 'text', text: bad }] },
  })
  expect(ended).toMatchObject({ result: legible, error: legible, errorDetail: { cause: legible } })
  expect((await loadSteps(database, job.id))[0]).toMatchObject({
    modelOutput: [{ toolCallId: 'c' }, { delta: legible }],
    responseMessages: [{ content: legible }],
  })
  const [output, error] = await loadToolCalls(database, job.id)
  expect(output?.outcome).toEqual({ output: { [legible]: [legible] } })
  expect(error?.outcome).toMatchObject({ error: { message: legible } })
})

test('in one group, two deliveries of a job make one claim, and of two claims only the true one writes', async () => {
  const { database } = stage.runtime
  const { id } = await spawnJob(stage.runtime, 'grouped')
  const lost = await claimNext(stage.runtime, id)
  await handBack(stage.runtime, lost, claimOf(lost), 'handed-back')
  const claims = [1, 2].map((deliverySeq) => ({ jobId: id, token: newId(), deliverySeq, workerId: 'w' }))
  const [old, due] = await claimJobs(database, claims)
  expect([old, due]).toMatchObject(['apart', { id, attempt: 2, claimToken: claims[1]?.token }])
  const holder = { jobId: id, token: claims[1]?.token ?? '' }
  const answers = await storeModelOutputs(database, [
    { claim: claimOf(lost), output: { ...OUTPUT, finishReason: 'length' } },
    { claim: holder, output: OUTPUT },
  ])
  expect(answers).toMatchObject(['apart', { held: true, counters: { steps: 1, totalTokens: 3n } }])
  expect(await loadSteps(database, id)).toMatchObject([{ index: 0, finishReason: 'stop' }])
})
