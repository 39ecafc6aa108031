// The tree of a job over HTTP, and what it adds up to.
import type { ClaimedJob } from '@offshoot/shared/db/agent-jobs'
import { storeModelOutput } from '@offshoot/shared/db/journal'
import type { CutTokens, Usage } from '@offshoot/shared/contracts/usage'
import { finishAgent } from '@offshoot/shared/operations/finish-agent'
import { claimNext, claimOf, spawnChild } from '@offshoot/testing/jobs-without-worker'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ApiUnderTest, openApi } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
  await api.stage.putBot('writer')
})
afterAll(() => api.close())

const UNKNOWN: Usage = { inputTokens: null, outputTokens: null, reasoningTokens: null, totalTokens: null }
const ZERO: Usage = { inputTokens: 0, outputTokens: 0, reasoningTokens: 0, totalTokens: 0 }
const usageOf = (inputTokens: number, outputTokens: number): Usage => ({
  inputTokens,
  outputTokens,
  reasoningTokens: null,
  totalTokens: inputTokens + outputTokens,
})

/** Claims a job and stores steps of these costs. */
async function begin(jobId: string, ...usages: Usage[]) {
  const job = await claimNext(api.stage.runtime, jobId)
  for (const [index, usage] of usages.entries()) await spend(job, index, usage)
  return job
}

/** Stores one more step of a job that runs. */
async function spend(job: ClaimedJob, index: number, usage: Usage, costMicroUsd: number | null = null) {
  await storeModelOutput(api.stage.runtime.database, claimOf(job), {
    index,
    generation: 1,
    parts: [],
    usage,
    costMicroUsd,
    finishReason: 'stop',
    elapsedMs: 1,
    inboxSeqs: [],
  })
}

const fail = (job: ClaimedJob, cutTokens?: CutTokens) =>
  finishAgent(api.stage.runtime, job, {
    guard: { ...claimOf(job), cutTokens },
    ending: { state: 'failed', reason: 'timeout_step', result: null, error: 'No.', partial: true },
  })

async function treeOf(jobId: string) {
  const { status, body } = await api.json(`/v1/agents/${jobId}/tree`, { as: 'alice' })
  expect(status).toBe(200)
  const { jobs } = body as { jobs: { jobId: string; usage: Usage; subtree: { jobs: number; usage: Usage } }[] }
  return new Map(jobs.map((job) => [job.jobId, job]))
}

test('STATE-18 COST-10: a tree counts each job once, with what failed and was cut; unknown and zero stay what they are', async () => {
  const { runtime } = api.stage
  const root = await begin(await api.spawn('alice'), usageOf(10, 1), usageOf(20, 2))
  const [middle, silent, free] = [
    await spawnChild(runtime, root, {}, 1),
    await spawnChild(runtime, root, {}, 2),
    await spawnChild(runtime, root, {}, 3),
  ]
  const middleJob = await begin(middle.id, usageOf(100, 10))
  const leaf = await spawnChild(runtime, middleJob, { bot: { botGroup: 'forge', botHandle: 'writer' } })
  await fail(await begin(leaf.id, usageOf(1_000, 100)), { inputTokens: 5_000, outputTokens: 500 })
  await fail(middleJob)
  await fail(await begin(silent.id, UNKNOWN))
  await fail(await begin(free.id, ZERO))

  const tree = await treeOf(root.id)
  expect(tree.get(root.id)).toMatchObject({
    usage: usageOf(30, 3),
    subtree: { jobs: 5, usage: { ...usageOf(6_130, 613), reasoningTokens: 0, estimatedTokens: 5_500 } },
  })
  expect(tree.get(middle.id)).toMatchObject({
    usage: usageOf(100, 10),
    subtree: { jobs: 2, usage: { ...usageOf(6_100, 610), estimatedTokens: 5_500 } },
  })
  expect(tree.get(middle.id)?.usage).not.toHaveProperty('estimatedTokens')
  expect(tree.get(leaf.id)).toMatchObject({
    usage: { ...usageOf(6_000, 600), estimatedTokens: 5_500 },
    subtree: { jobs: 1, usage: { ...usageOf(6_000, 600), estimatedTokens: 5_500 } },
  })
  expect(tree.get(silent.id)).toMatchObject({ usage: UNKNOWN, subtree: { jobs: 1, usage: UNKNOWN } })
  expect(tree.get(free.id)).toMatchObject({ usage: ZERO, subtree: { jobs: 1, usage: ZERO } })
})

test('COST-10: each look at a job shows the estimate', async () => {
  const jobId = await api.spawn('alice')
  await fail(await begin(jobId, usageOf(10, 5)), { inputTokens: 7, outputTokens: 0 })
  const usage = { ...usageOf(17, 5), estimatedTokens: 7 }
  expect((await api.json(`/v1/agents/${jobId}`, { as: 'alice' })).body).toMatchObject({ usage })
  const page = await api.json(`/v1/agents?rootJobId=${jobId}`, { as: 'alice' })
  expect(page.body).toMatchObject({ jobs: [{ jobId, usage }] })
})

interface Totals {
  usage?: Usage
  costUsd?: number | null
  subtree?: { jobs: number; usage: Usage; costUsd: number | null }
}

const look = async (path: string) => (await api.json(path, { as: 'alice' })).body

/** The own and subtree totals of a job, as each place that shows it says. */
async function totalsOf(jobId: string, rootJobId: string) {
  const { jobs: tree } = (await look(`/v1/agents/${rootJobId}/tree`)) as { jobs: ({ jobId: string } & Totals)[] }
  const { jobs: list } = (await look(`/v1/agents?rootJobId=${rootJobId}`)) as { jobs: ({ jobId: string } & Totals)[] }
  const places: (Totals | undefined)[] = [
    await look(`/v1/agents/${jobId}`),
    await look(`/v1/agents/${jobId}?includePartial=true`),
    list.find((job) => job.jobId === jobId),
    tree.find((job) => job.jobId === jobId),
  ]
  const told = places.map((place) => ({ usage: place?.usage, costUsd: place?.costUsd, subtree: place?.subtree }))
  for (const each of told) expect(each).toEqual(told[0])
  return told[0]
}

test('COST-10 STATE-18: a job shows what it and its subtree have used, as it is spent, by children that fail, too', async () => {
  const { runtime } = api.stage
  const root = await begin(await api.spawn('alice'))
  expect(await totalsOf(root.id, root.id)).toEqual({
    usage: UNKNOWN,
    costUsd: null,
    subtree: { jobs: 1, usage: UNKNOWN, costUsd: null },
  })
  const failing = await claimNext(runtime, (await spawnChild(runtime, root, {}, 0)).id)
  const running = await claimNext(runtime, (await spawnChild(runtime, root, {}, 1)).id)
  // Its model has no price: what it costs is unknown, and counts nothing.
  await spend(failing, 0, usageOf(1_000, 100))
  expect(await totalsOf(root.id, root.id)).toEqual({
    usage: UNKNOWN,
    costUsd: null,
    subtree: { jobs: 3, usage: usageOf(1_000, 100), costUsd: null },
  })
  await fail(failing, { inputTokens: 7, outputTokens: 0 })
  await spend(running, 0, usageOf(10, 1), 100_000)
  await spend(root, 0, usageOf(20, 2), 200_000)
  const before = { ...usageOf(1_037, 103), estimatedTokens: 7 }
  expect(await totalsOf(root.id, root.id)).toEqual({
    usage: usageOf(20, 2),
    costUsd: 0.2,
    subtree: { jobs: 3, usage: before, costUsd: 0.3 },
  })
  await spend(running, 1, usageOf(5, 5), 1)
  expect(await totalsOf(root.id, root.id)).toEqual({
    usage: usageOf(20, 2),
    costUsd: 0.2,
    subtree: { jobs: 3, usage: { ...usageOf(1_042, 108), estimatedTokens: 7 }, costUsd: 0.300001 },
  })
  const own = { usage: usageOf(15, 6), costUsd: 0.100001 }
  expect(await totalsOf(running.id, root.id)).toEqual({ ...own, subtree: { jobs: 1, ...own } })
})

test('STATE-18: a retried job is shown with its totals, and so is one that a sync spawn does not wait for', async () => {
  const body = { bot: { botGroup: 'forge', botHandle: 'planner' }, message: 'hello' }
  const accepted = await api.json('/v1/agents?wait=0', { as: 'alice', body })
  const subtree = { jobs: 1, usage: UNKNOWN, costUsd: null }
  expect(accepted).toMatchObject({ status: 202, body: { usage: UNKNOWN, costUsd: null, subtree } })
  const job = await begin(String(accepted.body['jobId']), usageOf(3, 2))
  await fail(job)
  const retried = await api.json(`/v1/agents/${job.id}/retry`, { as: 'alice', body: {} })
  expect(retried).toMatchObject({ status: 202, body: { usage: usageOf(3, 2), subtree: { usage: usageOf(3, 2) } } })
})

test('LOSS-19: the sum of counts that no number can hold is unknown, and breaks no answer', async () => {
  const { runtime } = api.stage
  const root = await begin(await api.spawn('alice'), usageOf(1, 1))
  const child = await spawnChild(runtime, root)
  const most = { inputTokens: 2n ** 63n - 1n, totalTokens: 2n ** 53n - 1n, costMicroUsd: 2n ** 63n - 1n }
  await runtime.database.agentJob.updateMany({ where: { id: { in: [root.id, child.id] } }, data: most })
  expect(await totalsOf(root.id, root.id)).toMatchObject({
    usage: { totalTokens: 2 ** 53 - 1 },
    subtree: { jobs: 2, usage: { inputTokens: null, outputTokens: 1, totalTokens: null }, costUsd: null },
  })
})
