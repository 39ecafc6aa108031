// Many jobs that complete in one commit: as each alone would have ended, and none that needs more.
import { readJob } from '@offshoot/testing/agents'
import { claimNext, claimOf, COMPLETED, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import type { ModelMessage } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { ClaimedJob } from '../src/db/agent-jobs.ts'
import { loadSteps, type ModelOutput, storeModelOutput, storeWholeStep } from '../src/db/journal.ts'
import { type CommonEnd, endTogether } from '../src/operations/end-together.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { insertSteer } from '../src/operations/steer-agent.ts'
import { lockTree, transact } from '../src/operations/transact.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ environment: { MAX_ACTIVE_JOBS_PER_USER: '1000' } })
  await stage.putBot('writer')
})
afterAll(() => stage.close())

const parts = [{ type: 'step-start' as const }, { type: 'text' as const, text: 'done', state: 'done' as const }]
const messages: ModelMessage[] = [{ role: 'assistant', content: [{ type: 'text', text: 'done' }] }]

const output: ModelOutput = {
  index: 0,
  generation: 1,
  parts: [{ type: 'text-delta', id: 'a', delta: 'done' }],
  usage: { inputTokens: 10, outputTokens: 5, reasoningTokens: null, totalTokens: 15 },
  costMicroUsd: 7,
  finishReason: 'stop',
  elapsedMs: 3,
  inboxSeqs: [],
}

/** A job whose only step has been made and is not stored, and how it would end. */
async function aboutToEnd(user = 'alice'): Promise<CommonEnd> {
  const { runtime } = stage
  const job = await claimNext(runtime, (await spawnJob(runtime, user)).id)
  return {
    job,
    claim: claimOf(job),
    reason: 'completed',
    result: 'done',
    parts,
    lastStep: { output, messages },
    counters: job,
    endsStep: false,
  }
}

/** All that the end of a job leaves, without ids and instants. */
async function footprint({ id, convoId }: ClaimedJob): Promise<string> {
  const { database } = stage.runtime
  const job = await readJob(stage, id)
  const rows = {
    job,
    steps: await loadSteps(database, id),
    messages: await database.aiMessage.findMany({ where: { convoId }, orderBy: { seq: 'asc' } }),
    events: await database.agentEvent.findMany({ where: { jobId: id }, orderBy: { id: 'asc' } }),
    outbox: await database.outbox.findMany({ where: { jobId: id, kind: 'ended' } }),
  }
  const text = JSON.stringify(rows, (_key, value: unknown) => (typeof value === 'bigint' ? value.toString() : value), 1)
  const known = new Map<string, string>()
  return text
    .replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, (found) => {
      known.set(found, known.get(found) ?? `id ${known.size}`)
      return known.get(found) ?? ''
    })
    .replaceAll(/"\d{4}-\d\d-\d\dT[\d:.]+Z"/g, '"then"')
    .replaceAll(/"(id|lockKey)": "?\d+"?/g, '"$1": 0')
    .replaceAll(/"doneAt": (null|"then")/g, '"doneAt": "some time"')
}

test('three end in one commit, each with all that it leaves when it ends alone', async () => {
  const ends = [await aboutToEnd('ann'), await aboutToEnd('ben'), await aboutToEnd('cid')]
  expect(await endTogether(stage.runtime, ends)).toEqual([{ steps: 1 }, { steps: 1 }, { steps: 1 }])
  const alone = await aboutToEnd('carol')
  await storeModelOutput(stage.runtime.database, alone.claim, output)
  await storeWholeStep(stage.runtime.database, alone.claim, 0, messages)
  await finishAgent(stage.runtime, alone.job, {
    guard: alone.claim,
    ending: COMPLETED,
    message: { parts },
    parkTimeoutMs: 1_000,
  })
  const expected = await footprint(alone.job)
  for (const { job } of ends) expect((await footprint(job)).replaceAll(`"${job.ownerId}"`, '"carol"')).toEqual(expected)
})

test('a last step that was stored before becomes whole with the end, and is counted once', async () => {
  const end = await aboutToEnd()
  const { counters } = await storeModelOutput(stage.runtime.database, end.claim, output)
  expect(counters).toMatchObject({ steps: 1, totalTokens: 15n })
  expect(await endTogether(stage.runtime, [end])).toEqual([{ steps: 1 }])
  expect(await readJob(stage, end.job.id)).toMatchObject({ steps: 1, totalTokens: 15n, costMicroUsd: 7n })
  expect(await loadSteps(stage.runtime.database, end.job.id)).toMatchObject([{ index: 0, responseMessages: messages }])
})

test('one that was spoken to, one that waits to hear of a child, one without its claim and an ended one are left apart, whole', async () => {
  const spokenTo = await aboutToEnd()
  await transact(stage.runtime, async (tx) => {
    await lockTree(tx, spokenTo.job.rootJobId)
    await insertSteer(tx, spokenTo.job.id, { key: 'steer', text: 'wait', actorId: 'alice' })
  })
  const parent = await aboutToEnd()
  await spawnChild(stage.runtime, parent.job, { mode: 'async', notifyParent: true })
  const lost = await aboutToEnd()
  const ended = await aboutToEnd()
  await finishAgent(stage.runtime, ended.job, { guard: ended.claim, ending: COMPLETED })
  const fine = await aboutToEnd()
  const stale = { ...lost, claim: { ...lost.claim, token: 'another' } }
  const before = await Promise.all([spokenTo, parent, lost, ended].map(({ job }) => footprint(job)))
  const twice = { ...fine, claim: { ...fine.claim, token: 'an older one' } }
  expect(await endTogether(stage.runtime, [spokenTo, parent, stale, ended, fine, twice])).toEqual([
    'apart',
    'apart',
    'apart',
    'apart',
    { steps: 1 },
    'apart',
  ])
  expect(await Promise.all([spokenTo, parent, lost, ended].map(({ job }) => footprint(job)))).toEqual(before)
})

test('one whose tree somebody holds is left apart, and nobody waits for it', async () => {
  const held = await aboutToEnd()
  const free = await aboutToEnd()
  const release = Promise.withResolvers<void>()
  let locked = false
  const holding = transact(stage.runtime, async (tx) => {
    await lockTree(tx, held.job.rootJobId)
    locked = true
    await release.promise
  })
  await waitUntil(() => locked)
  expect(await endTogether(stage.runtime, [held, free])).toEqual(['apart', { steps: 1 }])
  release.resolve()
  await holding
})
