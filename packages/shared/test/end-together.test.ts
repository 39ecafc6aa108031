// Many jobs that complete in one commit: as each alone would have ended, and none that needs more.
import { readJob } from '@offshoot/testing/agents'
import { claimNext, claimOf, COMPLETED, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import type { ModelMessage } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { ClaimedJob } from '../src/db/agent-jobs.ts'
import { loadSteps, storeModelOutput, storeWholeStep } from '../src/db/journal.ts'
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

/** A job whose only step is stored and not whole, and how it would end. */
async function aboutToEnd(user = 'alice'): Promise<CommonEnd> {
  const { runtime } = stage
  const job = await claimNext(runtime, (await spawnJob(runtime, user)).id)
  const { counters } = await storeModelOutput(runtime.database, claimOf(job), {
    index: 0,
    generation: 1,
    parts: [{ type: 'text-delta', id: 'a', delta: 'done' }],
    usage: { inputTokens: 10, outputTokens: 5, reasoningTokens: null, totalTokens: 15 },
    finishReason: 'stop',
    elapsedMs: 3,
    inboxSeqs: [],
  })
  if (counters === null) throw new Error('the output was not stored')
  return {
    job,
    claim: claimOf(job),
    reason: 'completed',
    result: 'done',
    parts,
    lastStep: { index: 0, messages },
    counters,
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
