// A viewer whose live stream holds no end: the job's row tells it.
import { claimNext, claimOf, COMPLETED, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { followAgent } from '../src/operations/follow-agent.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage()
  await stage.putBot('writer')
})
afterEach(() => vi.restoreAllMocks())
afterAll(() => stage.close())

test.each([-600_000, 600_000])(
  'STUCK-13: gets its end though the clock of its process is off by %i ms',
  async (offMs) => {
    const { runtime } = stage
    const job = await claimNext(runtime, (await spawnJob(runtime, 'alice')).id)
    await finishAgent(runtime, job, { guard: claimOf(job), ending: COMPLETED })
    await waitUntil(async () => (await runtime.liveStreams.read(job.id, 0)).length > 0)
    await runtime.database.agentJob.update({
      where: { id: job.id },
      data: { finishedAt: new Date(Date.now() - 60_000) },
    })
    const now = Date.now.bind(Date)
    vi.spyOn(Date, 'now').mockImplementation(() => now() + offMs)
    // Behind all that the live stream holds.
    const followed = followAgent(runtime, job.id, { afterSeq: 1_000 })
    const chunks = []
    for await (const { chunk } of followed) chunks.push(chunk.type)
    expect(chunks.at(-1)).toBe('finish')
  },
  4_000,
)
