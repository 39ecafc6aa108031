// SEC-4: each spawn, steer, abort, retry and refusal is in the job's history, with who did it; what is asked of a job that
// is not the asker's leaves no trace in it.
import { openConvo } from '@offshoot/testing/agents'
import {
  claimNext,
  claimOf,
  COMPLETED,
  hostOrigin,
  spawnChildren,
  spawnInput,
  spawnJob,
} from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { ClaimedJob, Ending } from '../src/db/agent-jobs.ts'
import { abortAgent } from '../src/operations/abort-agent.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { messageAgent } from '../src/operations/message-agent.ts'
import type { JobReader } from '../src/operations/readable-jobs.ts'
import { retryAgent } from '../src/operations/retry-agent.ts'
import { spawnAgent } from '../src/operations/spawn-agent.ts'
import { startTurn } from '../src/operations/start-turn.ts'
import { originOfContext } from '../src/tools/spawn-agent.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ environment: { MAX_ACTIVE_JOBS_PER_USER: '1000' } })
  await stage.putBot('writer')
  await stage.runtime.database.user.createMany({ data: [{ id: 'admin', admin: true }, { id: 'alice' }, { id: 'bob' }] })
})
afterAll(() => stage.close())

const ALICE: JobReader = { userId: 'alice', admin: false }
const ADMIN: JobReader = { userId: 'admin', admin: true }
const FAILED: Ending = { state: 'failed', reason: 'model_auth', result: null, error: 'No.', partial: false }

const claimed = async (more: Parameters<typeof spawnJob>[2] = {}) =>
  claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice', more)).id)
const finish = (job: ClaimedJob, ending: Ending) => finishAgent(stage.runtime, job, { guard: claimOf(job), ending })

/** The job's history without what Offshoot does by itself. */
async function historyOf(jobId: string) {
  const events = await stage.runtime.database.agentEvent.findMany({ where: { jobId }, orderBy: { id: 'asc' } })
  return events
    .filter(({ kind }) => kind !== 'told-late')
    .map(({ kind, actorId, data }) => ({ kind, actorId, data: data as Record<string, unknown> }))
}
const linesOf = async (jobId: string) => (await historyOf(jobId)).map(({ kind, actorId }) => `${kind} ${actorId}`)

const say = (convoId: string, text: string) =>
  startTurn(stage.runtime, {
    convoId,
    userId: 'alice',
    message: { text, parts: [{ type: 'text', text }] },
    ifBusy: 'steer',
  })

describe('SEC-4: what was done is in the history, with who did it', () => {
  test('a spawn, a steer, an abort and a retry, each by somebody else', async () => {
    const job = await claimed()
    await messageAgent(stage.runtime, ALICE, { jobId: job.id, message: 'hurry' }, 'alice')
    await messageAgent(stage.runtime, ADMIN, { jobId: job.id, message: 'stop it' }, 'admin')
    await finish(job, FAILED)
    await retryAgent(stage.runtime, ADMIN, { jobId: job.id }, 'admin')
    await abortAgent(stage.runtime, ALICE, { jobId: job.id }, 'alice')
    expect(await linesOf(job.id)).toEqual([
      'spawned alice',
      'steered alice',
      'steered admin',
      'ended null',
      'retried admin',
      'abort-requested alice',
      'ended alice',
    ])
  })

  test('a chat turn, and a message to it', async () => {
    const convoId = await openConvo(stage, 'writer')
    const turn = await say(convoId, 'hello')
    await say(convoId, 'and quick')
    expect(await linesOf('jobId' in turn ? turn.jobId : '')).toEqual(['spawned alice', 'steered alice'])
  })

  test('what a running job does to those below it is done by its owner', async () => {
    const parent = await claimed()
    const { children } = await spawnChildren(stage.runtime, parent, [{}])
    const jobId = children[0]?.id ?? ''
    const reader = { runningJobId: parent.id }
    await messageAgent(stage.runtime, reader, { jobId, message: 'hurry' }, 'alice')
    await abortAgent(stage.runtime, reader, { jobId }, 'alice')
    expect(await linesOf(jobId)).toEqual(['spawned alice', 'steered alice', 'abort-requested alice', 'ended alice'])
  })

  test('an abort stands in the history of each job that it reaches', async () => {
    const parent = await claimed()
    const { children } = await spawnChildren(stage.runtime, parent, [{}])
    await stage.runtime.database.agentJob.update({ where: { id: parent.id }, data: { claimToken: null } })
    await abortAgent(stage.runtime, ADMIN, { jobId: parent.id }, 'admin')
    for (const id of [parent.id, children[0]?.id ?? ''])
      expect((await linesOf(id)).slice(-2)).toEqual(['abort-requested admin', 'ended admin'])
  })
})

const refusalsOf = async (jobId: string) =>
  (await historyOf(jobId)).filter(({ kind }) => kind === 'refused').map(({ actorId, data }) => ({ actorId, ...data }))

describe('SEC-4: what was refused is in the history, with who asked', () => {
  test('a spawn by a running job, in its own', async () => {
    const parent = await claimed()
    await spawnChildren(stage.runtime, parent, [{ runAsUserId: 'bob' }, { overrides: { toolFilter: ['rm'] } }], 2)
    expect(await refusalsOf(parent.id)).toEqual([
      {
        actorId: 'alice',
        what: 'spawn',
        step: 2,
        reason: 'not_authorized',
        error: expect.stringContaining('as user bob'),
      },
      {
        actorId: 'alice',
        what: 'spawn',
        step: 2,
        reason: 'unknown_tool',
        error: 'Unknown tools: rm. Known: spawnAgent, checkAgent, abortAgent.',
      },
    ])
  })

  test('a spawn by a tool that runs inside a job, in that job’s', async () => {
    const parent = await claimed()
    const origin = await originOfContext(stage.runtime, {
      userId: 'alice',
      parentConvoId: parent.convoId,
      parentConvoOwnerId: 'alice',
      parentConvoSpaceId: null,
      spawnDepth: 1,
      parentJobId: parent.id,
    })
    expect(await spawnAgent(stage.runtime, origin, spawnInput({ runAsUserId: 'bob' }))).toMatchObject({
      kind: 'refused',
    })
    expect(await refusalsOf(parent.id)).toMatchObject([{ actorId: 'alice', what: 'spawn', reason: 'not_authorized' }])
  })

  test('a spawn by nobody’s job, in none', async () => {
    const before = await stage.runtime.database.agentEvent.count()
    await spawnAgent(stage.runtime, hostOrigin('alice'), spawnInput({ runAsUserId: 'bob' }))
    expect(await stage.runtime.database.agentEvent.count()).toBe(before)
  })

  test('a message to a job that has ended, and a retry of one that has completed', async () => {
    const job = await claimed()
    await finish(job, COMPLETED)
    await messageAgent(stage.runtime, ALICE, { jobId: job.id, message: 'hurry' }, 'alice')
    await retryAgent(stage.runtime, ADMIN, { jobId: job.id }, 'admin')
    expect(await refusalsOf(job.id)).toEqual([
      { actorId: 'alice', what: 'message', error: 'The job has ended; nobody reads messages to it any more.' },
      {
        actorId: 'admin',
        what: 'retry',
        reason: 'invalid_request',
        error: 'Only a failed or aborted job can be retried; this one is completed.',
      },
    ])
  })

  test('a retry of a turn whose convo is busy with another one', async () => {
    const convoId = await openConvo(stage, 'writer')
    const turn = await say(convoId, 'hello')
    const jobId = 'jobId' in turn ? turn.jobId : ''
    await finish(await claimNext(stage.runtime, jobId), FAILED)
    await say(convoId, 'again')
    expect(await retryAgent(stage.runtime, ALICE, { jobId }, 'alice')).toEqual({ kind: 'busy' })
    expect(await refusalsOf(jobId)).toEqual([{ actorId: 'alice', what: 'retry', error: 'The convo has a live turn.' }])
  })

  test('what a running job asks of one that is not below it: in its own history, the same for a foreign and an unknown one', async () => {
    const [job, foreign] = [await claimed(), await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'bob')).id)]
    const before = await historyOf(foreign.id)
    const ask = async (jobId: string) => {
      const asking = await claimed()
      const reader = { runningJobId: asking.id }
      await messageAgent(stage.runtime, reader, { jobId, message: 'mine' }, 'alice')
      await abortAgent(stage.runtime, reader, { jobId }, 'alice')
      return JSON.stringify(await refusalsOf(asking.id)).replaceAll(jobId, '<id>')
    }
    expect(await ask(foreign.id)).toBe(await ask('unknown'))
    expect(JSON.parse(await ask(job.id))).toEqual([
      { actorId: 'alice', what: 'message', error: 'Job <id> not found.' },
      { actorId: 'alice', what: 'abort', error: 'Job <id> not found.' },
    ])
    expect(await historyOf(foreign.id)).toEqual(before)
  })

  test('what a user asks of a job that is not the user’s: nowhere', async () => {
    const job = await claimed()
    const before = await stage.runtime.database.agentEvent.count()
    const mallory = { userId: 'mallory', admin: false }
    await messageAgent(stage.runtime, mallory, { jobId: job.id, message: 'mine' }, 'mallory')
    await abortAgent(stage.runtime, mallory, { jobId: job.id }, 'mallory')
    await retryAgent(stage.runtime, mallory, { jobId: job.id }, 'mallory')
    expect(await stage.runtime.database.agentEvent.count()).toBe(before)
  })
})
