// The tree of a job over HTTP, and what it adds up to.
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
  for (const [index, usage] of usages.entries())
    await storeModelOutput(api.stage.runtime.database, claimOf(job), {
      index,
      generation: 1,
      parts: [],
      usage,
      finishReason: 'stop',
      elapsedMs: 1,
      inboxSeqs: [],
    })
  return job
}

const fail = (job: Awaited<ReturnType<typeof begin>>, cutTokens?: CutTokens) =>
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
