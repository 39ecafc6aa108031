// A spawn that is accepted: what is in Postgres when it answers, and how its delivery reaches the queue.
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { hostOrigin, spawnInput, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { programSpawnInputSchema } from '../src/contracts/spawn.ts'
import { defineLayer } from '../src/layers.ts'
import { checkAgent } from '../src/operations/check-agent.ts'
import { asyncOutput, spawnAgent } from '../src/operations/spawn-agent.ts'
import { redisTexts } from '@offshoot/testing/redis-texts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ extensions: { layers: [defineLayer({ id: 'notes' })] } })
  await stage.putBot('writer', { lane: 'default', layers: ['notes'] })
  await stage.putBot('gpu-writer', { lane: 'gpu' })
})
afterAll(() => stage.close())

const alice = { userId: 'alice', admin: false }

async function deliveryOf(jobId: string, lane = 'default', deliverySeq = 1) {
  return waitUntil(() => stage.runtime.deliveries.lane(lane).getJob(`${jobId}-${deliverySeq}`), {
    what: 'the delivery',
  })
}

test('STATE-11: a spawn answers after its commit, so that a check at once knows the job', async () => {
  const jobs = await Promise.all(
    Array.from({ length: 20 }, async () => {
      const job = await spawnJob(stage.runtime, 'alice')
      return {
        job,
        seen: await checkAgent(stage.runtime, alice, { jobId: job.id, includePartial: false, waitSeconds: 0 }),
      }
    }),
  )
  for (const { job, seen } of jobs)
    expect(seen).toMatchObject({ jobId: job.id, state: 'pending', progress: { step: 0, maxSteps: 25 } })
})

test('an async spawn answers with ids, its state, and a note on how the result will come', async () => {
  const job = await spawnJob(stage.runtime, 'alice', { notifyParent: true })
  expect(asyncOutput(job)).toEqual({
    mode: 'async',
    jobId: job.id,
    convoId: job.convoId,
    state: 'pending',
    note: expect.stringMatching(/Do not poll/),
  })
})

test('the rows of a spawn: job, tree, convo, first message, event and outbox entry', async () => {
  const { database } = stage.runtime
  const input = programSpawnInputSchema.parse({
    ...spawnInput({ message: 'Write a poem.' }),
    overrides: { maxSteps: 7, temperature: 0.5 },
    timeoutSeconds: 120,
    tags: { ticket: '42' },
    completionEvent: { name: 'poem/written', data: { for: 'bob' } },
    onParentEnd: 'continue',
  })
  const origin = hostOrigin('alice', { parentConvoId: 'host-convo', spaceId: 'space-1', depth: 1 })
  const answer = await spawnAgent(stage.runtime, origin, input)
  const jobId = answer.kind === 'accepted' ? answer.job.id : ''
  const job = await database.agentJob.findUniqueOrThrow({ where: { id: jobId } })
  expect(job).toMatchObject({
    botLabel: 'forge/writer',
    botRef: { botGroup: 'forge', botHandle: 'writer' },
    ownerId: 'alice',
    triggeredById: 'alice',
    triggeredByIds: ['alice'],
    grant: 'self',
    parentConvoId: 'host-convo',
    parentJobId: null,
    rootJobId: jobId,
    ancestorIds: [],
    depth: 2,
    tags: { ticket: '42' },
    mode: 'async',
    inputMessage: 'Write a poem.',
    inputSeq: 1,
    overrides: { maxSteps: 7, temperature: 0.5 },
    toolNames: ['spawnAgent', 'checkAgent', 'abortAgent'],
    maxSteps: 7,
    layers: ['notes'],
    lane: 'default',
    timeoutMs: 120_000,
    onParentEnd: 'continue',
    completionEventName: 'poem/written',
    completionEventData: { for: 'bob' },
    completionEventFired: false,
    state: 'pending',
    generation: 1,
    attempt: 0,
    deliverySeq: 1,
    claimToken: null,
  })
  expect(job.botSnapshot).toMatchObject({ group: 'forge', handle: 'writer', modelName: 'gpt-5', version: 1 })
  expect(job.deadlineAt.getTime() - job.createdAt.getTime()).toBeGreaterThanOrEqual(120_000)
  expect(job.deadlineAt.getTime() - job.createdAt.getTime()).toBeLessThan(125_000)
  expect(await database.agentTree.findUnique({ where: { rootJobId: jobId } })).toMatchObject({
    jobs: 1,
  })
  expect(await database.convo.findUnique({ where: { id: job.convoId } })).toMatchObject({
    botId: job.botId,
    ownerId: 'alice',
    spaceId: 'space-1',
  })
  const messages = await database.aiMessage.findMany({ where: { convoId: job.convoId } })
  expect(messages).toMatchObject([
    { ownerId: 'alice', seq: 1, role: 'user', parts: [{ type: 'text', text: 'Write a poem.' }], jobId: null },
  ])
  expect(await database.agentEvent.findMany({ where: { jobId } })).toMatchObject([
    {
      kind: 'spawned',
      actorId: 'alice',
      data: { bot: 'forge/writer', ownerId: 'alice', grant: 'self', mode: 'async' },
    },
  ])
  const outbox = await waitUntil(async () => {
    const entries = await database.outbox.findMany({ where: { jobId } })
    return entries.every((entry) => entry.doneAt !== null) && entries
  })
  expect(outbox).toMatchObject([{ kind: 'delivery', key: `delivery:${jobId}-1`, attempts: 0 }])
})

test("the delivery is named after the bot, with a priority of 10 and more, in the bot's lane or the spawn's", async () => {
  const job = await spawnJob(stage.runtime, 'carol', { bot: { botGroup: 'forge', botHandle: 'gpu-writer' } })
  const delivery = await deliveryOf(job.id, 'gpu')
  expect(delivery).toMatchObject({ name: 'forge/gpu-writer', priority: 10 })
  expect(delivery.opts.attempts).toBe(1)
  const elsewhere = await spawnJob(stage.runtime, 'carol', { lane: 'gpu', priority: 5 })
  expect(await deliveryOf(elsewhere.id, 'gpu')).toMatchObject({ name: 'forge/writer', priority: 10 + 1 + 5 })
})

test("STUCK-17: each unfinished job of a user puts the user's next one further back, nobody else's", async () => {
  for (const expected of [10, 11, 12]) {
    const job = await spawnJob(stage.runtime, 'dave')
    expect(await deliveryOf(job.id)).toMatchObject({ priority: expected })
  }
  const single = await spawnJob(stage.runtime, 'erin')
  expect(await deliveryOf(single.id)).toMatchObject({ priority: 10 })
})

test('SEC-7: what Redis holds of a job are ids and labels, no prompt and no override', async () => {
  const job = await spawnJob(stage.runtime, 'alice', {
    message: 'the secret plan',
    overrides: { systemPromptOverride: 'secret instructions' },
    tags: { note: 'secret tag' },
  })
  const delivery = await deliveryOf(job.id)
  expect(delivery.data).toEqual({ agentJobId: job.id, deliverySeq: 1, owner: 'alice', parent: null, depth: 1 })
  const texts = await redisTexts(stage)
  expect(texts.some((text) => text.includes(job.id))).toBe(true)
  expect(texts.filter((text) => text.includes('secret'))).toEqual([])
})

test('LOSS-7: U+0000 and half an emoji in a message are stored legibly', async () => {
  const job = await spawnJob(stage.runtime, 'alice', {
    message: 'a\u0000b\ud83d 😀',
    overrides: { systemPromptAppend: 'c\u0000d' },
    tags: { 'k\u0000': 'v\u0000' },
    completionEvent: { name: 'x', data: { 'e\u0000': 'f\u0000' } },
  })
  const row = await stage.runtime.database.agentJob.findUniqueOrThrow({ where: { id: job.id } })
  expect(row.inputMessage).toBe('a␀b\ufffd 😀')
  expect(row.overrides).toEqual({ systemPromptAppend: 'c␀d' })
  expect(row.completionEventData).toEqual({ 'e␀': 'f␀' })
  expect(row.tags).toEqual({ 'k␀': 'v␀' })
})
