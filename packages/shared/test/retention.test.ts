// Retention: trees that ended long ago go wholly, with all that belongs to their jobs; everything else stays.
import { readJob } from '@offshoot/testing/agents'
import { claimNext, claimOf, COMPLETED, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Ending } from '../src/db/agent-jobs.ts'
import { storeModelOutput, storeWholeStep } from '../src/db/journal.ts'
import { newId } from '../src/ids.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { startReconciler } from '../src/operations/reconcile.ts'
import { removeOldTrees, removeToldEntries, TREES_A_ROUND } from '../src/operations/remove-old.ts'
import { retryAgent } from '../src/operations/retry-agent.ts'

const DAYS = 30

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({
    environment: { MAX_ACTIVE_JOBS_PER_USER: '1000', RETENTION_DAYS: String(DAYS), LOG_LEVEL: 'silent' },
  })
  await stage.putBot('writer')
})
afterAll(() => stage.close())

const FAILED: Ending = { state: 'failed', reason: 'model_auth', result: null, error: 'No.', partial: false }

/** A root with one child; the child survives its parent's end. */
async function openTree() {
  const root = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice')).id)
  const usage = { inputTokens: 1, outputTokens: 1, reasoningTokens: 0, totalTokens: 2 }
  const output = { index: 0, generation: 1, parts: [], usage, finishReason: 'stop', elapsedMs: 1, inboxSeqs: [] }
  await storeModelOutput(stage.runtime.database, claimOf(root), output)
  const messages = [{ role: 'assistant' as const, content: [{ type: 'text' as const, text: 'A poem.' }] }]
  await storeWholeStep(stage.runtime.database, claimOf(root), 0, messages)
  const child = await claimNext(
    stage.runtime,
    (await spawnChild(stage.runtime, root, { onParentEnd: 'continue', notifyParent: true }, 1)).id,
  )
  return { root, child }
}

async function endedTree(ending: Ending = COMPLETED) {
  const tree = await openTree()
  for (const job of [tree.child, tree.root]) await finishAgent(stage.runtime, job, { guard: claimOf(job), ending })
  return tree
}

async function endedDaysAgo(days: number, ...jobIds: string[]) {
  await stage.runtime.database.$executeRawUnsafe(
    `update "offshoot"."AgentJob" set "finishedAt" = clock_timestamp() - make_interval(hours => $1) where "id" = any($2)`,
    days * 24,
    jobIds,
  )
}

/** In which tables something of these jobs is. */
async function tablesOf(...jobIds: string[]): Promise<string[]> {
  const { database: db } = stage.runtime
  const jobId = { in: jobIds }
  const counts = {
    AgentJob: await db.agentJob.count({ where: { id: jobId } }),
    AgentTree: await db.agentTree.count({ where: { rootJobId: jobId } }),
    AgentStep: await db.agentStep.count({ where: { jobId } }),
    AgentToolCall: await db.agentToolCall.count({ where: { jobId } }),
    Blob: await db.blob.count({ where: { jobId } }),
    AgentEvent: await db.agentEvent.count({ where: { jobId } }),
    InboxItem: await db.inboxItem.count({ where: { jobId } }),
    Outbox: await db.outbox.count({ where: { jobId } }),
    LayerState: await db.layerState.count({ where: { jobId } }),
  }
  return Object.entries(counts).flatMap(([table, count]) => (count > 0 ? [table] : []))
}

const isThere = async (jobId: string) => (await stage.runtime.database.agentJob.count({ where: { id: jobId } })) === 1

test('a tree that ended long ago goes from every table; its convos and their messages stay', async () => {
  const { database } = stage.runtime
  const { root, child } = await endedTree()
  const toolCall = { jobId: root.id, stepIndex: 0, toolCallId: 'call_1', toolName: 'checkAgent' }
  await database.agentToolCall.create({ data: toolCall })
  await database.blob.create({ data: { id: newId(), jobId: root.id, bytes: Buffer.from('x') } })
  await database.layerState.create({ data: { id: newId(), jobId: root.id, layerId: 'memory', state: {} } })
  await endedDaysAgo(DAYS + 1, root.id, child.id)
  expect(await tablesOf(root.id, child.id)).toHaveLength(9)
  expect(await removeOldTrees(stage.runtime, DAYS)).toBe(1)
  expect(await tablesOf(root.id, child.id)).toEqual([])
  const convos = { in: [root.convoId, child.convoId] }
  expect(await database.convo.count({ where: { id: convos } })).toBe(2)
  // Two questions, an answer, and the child's outcome in its parent's convo.
  expect(await database.aiMessage.count({ where: { convoId: convos } })).toBe(4)
})

test('a tree stays whole while it has a job that is live, or that ended of late', async () => {
  const recent = await endedTree()
  await endedDaysAgo(DAYS + 1, recent.root.id)
  await endedDaysAgo(DAYS - 1, recent.child.id)
  const young = await endedTree()
  await endedDaysAgo(DAYS - 1, young.root.id, young.child.id)
  const live = await openTree()
  await finishAgent(stage.runtime, live.root, { guard: claimOf(live.root), ending: COMPLETED })
  await endedDaysAgo(DAYS + 1, live.root.id)
  expect(await removeOldTrees(stage.runtime, DAYS)).toBe(0)
  for (const { root, child } of [recent, young, live])
    expect(await Promise.all([isThere(root.id), isThere(child.id)])).toEqual([true, true])
  expect(await readJob(stage, live.child.id)).toMatchObject({ state: 'running' })
})

test('a retry at the instant of the removal finds no job, or keeps the whole tree, 30 times', async () => {
  const seen = new Set<string>()
  for (let round = 0; round < 30; round += 1) {
    const { root, child } = await endedTree(FAILED)
    await endedDaysAgo(DAYS + 1, root.id, child.id)
    const retry = () => retryAgent(stage.runtime, { userId: 'alice', admin: false }, { jobId: root.id }, 'alice')
    const remove = () => removeOldTrees(stage.runtime, DAYS)
    const [answer] = round % 2 === 0 ? await Promise.all([retry(), remove()]) : [await remove().then(retry)]
    expect(['retried', 'not_found']).toContain(answer.kind)
    const kept = answer.kind === 'retried'
    expect(await Promise.all([isThere(root.id), isThere(child.id)])).toEqual([kept, kept])
    seen.add(answer.kind)
  }
  expect(seen).toEqual(new Set(['retried', 'not_found']))
})

/** An outbox entry that was told so long ago, or never. */
const entry = (key: string, hours: number | null) => ({
  jobId: 'j',
  kind: 'ended' as const,
  key,
  nextAttemptAt: new Date(Date.now() + 3_600_000),
  doneAt: hours === null ? null : new Date(Date.now() - hours * 3_600_000),
})

test('told outbox entries go after a day; those that must still be told, and fresh ones, stay', async () => {
  const { database } = stage.runtime
  await database.outbox.createMany({ data: [entry('old', 25), entry('fresh', 23), entry('untold', null)] })
  expect(await removeToldEntries(database)).toBe(1)
  const left = await database.outbox.findMany({ where: { jobId: 'j' }, orderBy: { key: 'asc' } })
  expect(left.map(({ key }) => key)).toEqual(['fresh', 'untold'])
})

test('the reconciler does it, by RETENTION_DAYS', async () => {
  const [old, young] = [await endedTree(), await endedTree()]
  await endedDaysAgo(DAYS + 1, old.root.id, old.child.id)
  await endedDaysAgo(DAYS - 1, young.root.id, young.child.id)
  const reconciler = startReconciler(stage.runtime, { holder: 'retention' })
  try {
    await waitUntil(async () => !(await isThere(old.root.id)))
    expect(await isThere(young.root.id)).toBe(true)
  } finally {
    await reconciler.stop()
  }
})

test('however many trees there are to remove, retention catches up with them', async () => {
  const jobs = await Promise.all(Array.from({ length: TREES_A_ROUND + 10 }, () => spawnJob(stage.runtime, 'alice')))
  for (const { id } of jobs) {
    const run = await claimNext(stage.runtime, id)
    await finishAgent(stage.runtime, run, { guard: claimOf(run), ending: COMPLETED })
  }
  const ids = jobs.map(({ id }) => id)
  await endedDaysAgo(DAYS + 1, ...ids)
  const reconciler = startReconciler(stage.runtime, { holder: 'r' })
  const left = () => stage.runtime.database.agentJob.count({ where: { id: { in: ids } } })
  await expect.poll(left, { timeout: 15_000 }).toBe(0)
  await reconciler.stop()
})
