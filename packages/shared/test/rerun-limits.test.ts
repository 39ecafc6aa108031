// Limits that a re-run does not reset: those of a hand-over, a crash, a wait, and an operator's retry.
import { childrenOf, readJob } from '@offshoot/testing/agents'
import {
  claimNext,
  claimOf,
  COMPLETED,
  spawnChild,
  spawnChildren,
  spawnJob,
} from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { RetryInput } from '../src/contracts/retry.ts'
import type { AgentJob, ClaimedJob, Ending } from '../src/db/agent-jobs.ts'
import { storeAbortWish } from '../src/db/agent-jobs.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { handBack } from '../src/operations/hand-back.ts'
import { retryAgent } from '../src/operations/retry-agent.ts'
import { waitForRetry } from '../src/operations/wait-for-retry.ts'

const CAPS = { MAX_CHILDREN_PER_JOB: '3', MAX_ACTIVE_JOBS_PER_USER: '6' }

let stage: TestStage
let users = 0
beforeAll(async () => {
  stage = await openTestStage({ environment: CAPS })
  await stage.putBot('writer')
})
afterAll(() => stage.close())

const FAILED: Ending = { state: 'failed', reason: 'model_auth', result: null, error: 'No.', partial: false }

/** A user of each test's own, since caps count all jobs of a user. */
const newUser = () => `user-${(users += 1)}`
const claimed = async (userId = newUser(), more: Parameters<typeof spawnJob>[2] = {}) =>
  claimNext(stage.runtime, (await spawnJob(stage.runtime, userId, more)).id)
const finish = (job: ClaimedJob, ending: Ending = FAILED) =>
  finishAgent(stage.runtime, job, { guard: claimOf(job), ending })
const retry = (job: Pick<AgentJob, 'id' | 'ownerId'>, more: Omit<RetryInput, 'jobId'> = {}) =>
  retryAgent(stage.runtime, { userId: job.ownerId, admin: false }, { jobId: job.id, ...more }, job.ownerId)
const shiftDeadline = (jobId: string, seconds: number) =>
  stage.runtime.database.$executeRaw`
    update "offshoot"."AgentJob" set "deadlineAt" = "deadlineAt" - make_interval(secs => ${seconds}) where "id" = ${jobId}`

async function failedJob(userId = newUser()): Promise<ClaimedJob> {
  const job = await claimed(userId)
  await finish(job)
  return job
}

/** A child that a running parent has spawned, and that has failed. */
async function failedChild(
  parent: ClaimedJob,
  more: Parameters<typeof spawnChild>[2] = {},
  step = 0,
): Promise<ClaimedJob> {
  const child = await claimNext(stage.runtime, (await spawnChild(stage.runtime, parent, more, step)).id)
  await finish(child)
  return child
}

describe('over attempts', () => {
  test('STATE-16: the children of all attempts and generations count towards the cap', async () => {
    const first = await claimed()
    await spawnChild(stage.runtime, first, {}, 0)
    await handBack(stage.runtime, first, claimOf(first), 'handed-back')
    const second = await claimNext(stage.runtime, first.id, 'lost')
    await spawnChild(stage.runtime, second, {}, 1)
    await handBack(stage.runtime, second, { lostWorkerId: 'lost' }, 'worker-lost')
    const third = await claimNext(stage.runtime, first.id)
    await finish(third)
    await retry(third)
    const fourth = await claimNext(stage.runtime, first.id)
    expect(fourth).toMatchObject({ generation: 2, attempt: 4 })
    const { answer } = await spawnChildren(stage.runtime, fourth, [{}, {}], 2)
    const outputs = answer.kind === 'answered' ? [...answer.outputs.values()] : []
    expect(outputs).toMatchObject([{ state: 'pending' }, { state: 'failed', reason: 'cap' }])
    expect(await childrenOf(stage, first.id)).toHaveLength(3)
  })

  test('STATE-16: started attempts, crashes and put-off steps are summed over the workers that have them', async () => {
    const { id } = await spawnJob(stage.runtime, newUser())
    for (let round = 1; round <= 3; round += 1) {
      const lost = await claimNext(stage.runtime, id, 'lost')
      await handBack(stage.runtime, lost, { lostWorkerId: 'lost' }, 'worker-lost')
      const job = await claimNext(stage.runtime, id)
      expect(job).toMatchObject({ attempt: 2 * round, crashes: round, stepRetries: round - 1 })
      await waitForRetry(stage.runtime, job, claimOf(job), { forMs: 0, because: 'model_rate_limited', counted: true })
      await stage.runtime.database.$executeRaw`
        update "offshoot"."AgentJob" set "state" = 'pending', "waitingOn" = null where "id" = ${id}`
    }
    expect(await readJob(stage, id)).toMatchObject({ attempt: 6, crashes: 3, stepRetries: 3 })
  })

  test('STATE-16: the deadline is that of the spawn, however often the job is handed over', async () => {
    const first = await claimed()
    await shiftDeadline(first.id, 600)
    const { deadlineAt } = await readJob(stage, first.id)
    await handBack(stage.runtime, first, claimOf(first), 'handed-back')
    const second = await claimNext(stage.runtime, first.id)
    expect(second.deadlineAt).toEqual(deadlineAt)
    expect(second.msLeft).toBeLessThanOrEqual(first.msLeft - 600_000)
  })
})

describe('a retry', () => {
  test('COST-2: is refused over the user’s cap of unfinished jobs, also when many come at once', async () => {
    const userId = newUser()
    const jobs: ClaimedJob[] = []
    for (let at = 0; at < 10; at += 1) jobs.push(await failedJob(userId))
    const answers = await Promise.all(jobs.map((job) => retry(job)))
    expect(answers.filter((answer) => answer.kind === 'retried')).toHaveLength(6)
    const refused = answers.find((answer) => answer.kind === 'refused')
    expect(refused).toMatchObject({
      refusal: {
        reason: 'cap',
        error: `User ${userId} has 6 unfinished jobs; 6 are allowed. Wait until some have ended, or abort some.`,
      },
    })
    const rows = await Promise.all(jobs.map((job) => readJob(stage, job.id)))
    expect(rows.map(({ state, generation }) => `${state} ${generation}`).sort()).toEqual([
      ...Array.from({ length: 4 }, () => 'failed 1'),
      ...Array.from({ length: 6 }, () => 'pending 2'),
    ])
  })

  test('SEC-4: of a child ends no later than its live parent', async () => {
    const parent = await claimed(newUser(), { timeoutSeconds: 3_000 })
    const child = await failedChild(parent)
    await shiftDeadline(parent.id, 2_000)
    const { deadlineAt } = await readJob(stage, parent.id)
    expect(await retry(child, { timeoutSeconds: 80_000 })).toMatchObject({ kind: 'retried' })
    const again = await readJob(stage, child.id)
    expect(again.deadlineAt).toEqual(deadlineAt)
    expect(again.timeoutMs).toBeLessThanOrEqual(1_000_000)
  })

  test('SEC-4: of a child gets no larger budget than those above leave it, its own spend counted in', async () => {
    const parent = await claimed(newUser(), { budget: { maxTotalTokens: 1_000 } })
    const child = await failedChild(parent, { budget: { maxTotalTokens: 100 } })
    const { database } = stage.runtime
    await database.agentJob.update({ where: { id: child.id }, data: { totalTokens: 90n, estimatedInputTokens: 10n } })
    await database.agentJob.update({ where: { id: parent.id }, data: { totalTokens: 300n } })
    expect(await retry(child, { budget: { maxTotalTokens: 701 } })).toMatchObject({
      kind: 'refused',
      refusal: {
        reason: 'budget',
        error:
          'budget.maxTotalTokens 701 is more than the 700 tokens that the budgets above allow the job in all. Ask for less, or leave it out.',
      },
    })
    expect(await retry(child, { budget: { maxTotalTokens: 700 } })).toMatchObject({ kind: 'retried' })
    // Nor one in money that could not be kept.
    const other = await failedChild(parent, {}, 1)
    expect(await retry(other, { budget: { maxCostUsd: 1 } })).toMatchObject({
      kind: 'refused',
      refusal: { reason: 'budget', error: expect.stringContaining('The price of openai:gpt-5 is not known') },
    })
  })

  test.each(['failed', 'aborted', 'completed'] as const)(
    'COST-1: of a sync child whose parent has %s is refused: nobody would get the outcome',
    async (state) => {
      const parent = await claimed()
      const child = await failedChild(parent, { mode: 'sync' })
      const awake = await claimNext(stage.runtime, parent.id)
      if (state === 'aborted')
        await storeAbortWish(stage.runtime.database, [parent.id], { by: null, reason: 'aborted_by_user', text: null })
      await finish(awake, state === 'completed' ? COMPLETED : { ...FAILED, state, reason: 'aborted_by_user' })
      expect(await retry(child)).toMatchObject({
        kind: 'refused',
        refusal: {
          reason: 'invalid_request',
          error: `Its parent, job ${parent.id}, has ended or is about to, and this job does not go on without it. Retry the parent first, or spawn a new job.`,
        },
      })
      expect(await readJob(stage, child.id)).toMatchObject({ state: 'failed', generation: 1 })
    },
  )

  test('COST-1: of a child whose parent somebody wants to end is refused', async () => {
    const parent = await claimed()
    const child = await failedChild(parent)
    await storeAbortWish(stage.runtime.database, [parent.id], { by: null, reason: 'aborted_by_user', text: null })
    expect(await retry(child)).toMatchObject({ kind: 'refused' })
  })

  test('COST-1: of an async child goes on after its parent completed, or when it was spawned to outlive it', async () => {
    const done = await claimed()
    const left = await failedChild(done)
    await finish(done, COMPLETED)
    expect(await retry(left)).toMatchObject({ kind: 'retried' })
    const failed = await claimed()
    const [bound, free] = [await failedChild(failed), await failedChild(failed, { onParentEnd: 'continue' }, 1)]
    await finish(failed)
    expect(await retry(bound)).toMatchObject({ kind: 'refused' })
    expect(await retry(free)).toMatchObject({ kind: 'retried', job: { timeoutMs: 3_600_000 } })
    await retry(failed)
    expect(await retry(bound)).toMatchObject({ kind: 'retried' })
  })
})
