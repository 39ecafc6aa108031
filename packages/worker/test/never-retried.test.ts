// COST-5: every reason that the table of reasons says is never retried, brought about with a real worker: the model is
// called as often as the job's steps need, and no more after its end.
import { handBack } from '@offshoot/shared/operations/hand-back'
import { type Reason, REASON_CODES, REASONS } from '@offshoot/shared/contracts/reason'
import { finishAgent } from '@offshoot/shared/operations/finish-agent'
import { spawnAgent } from '@offshoot/shared/operations/spawn-agent'
import { abort, childrenOf, endOf, readJob, runRoot, spawnOf, spawnRoot } from '@offshoot/testing/agents'
import { hostOrigin, spawnInput } from '@offshoot/testing/jobs-without-worker'
import { callsTool, type RawModel, type RawScript, says, startRawModel, ticking } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage
beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    environment: { MODEL_CHUNK_MS: '400', MODEL_STEP_MS: '2000', MAX_CHILDREN_PER_JOB: '1', LOG_LEVEL: 'silent' },
    extensions: {
      providers: {
        broken: () => {
          throw new Error('cannot be made')
        },
      },
    },
  })
  await stage.putBot('bot')
  await stage.putBot('broken', { integration: 'broken' })
  await stage.putBot('toolless', { toolNames: ['nothing'] })
  raw.answer('canary', says('tweet'))
})
afterAll(async () => {
  await stage.close()
  await raw.stop()
})

/** A job that has ended, its message, and how often its model was to be called. */
interface Ended {
  jobId: string
  message: string
  calls: number
}

const refuses =
  (status: number, text: string): RawScript =>
  (reply) =>
    reply.status(status, { message: text })

/** The model answers as it is told; the job runs to its end. */
async function runsInto(message: string, scripts: RawScript[], more: object = {}): Promise<Ended> {
  raw.answer(message, ...scripts)
  const { handle = 'bot', ...spawn } = more as { handle?: string }
  const { id } = await runRoot(stage, handle, message, spawn)
  return { jobId: id, message, calls: scripts.length }
}

/** The model goes on for ever; `end` does it in the first step. */
async function endsBy(message: string, end: (jobId: string) => Promise<unknown>): Promise<Ended> {
  raw.answer(message, ticking)
  const { id } = await spawnRoot(stage, 'bot', message)
  await waitUntil(() => raw.requests(message).length === 1)
  await end(id)
  await endOf(stage, id)
  return { jobId: id, message, calls: 1 }
}

/** Somebody else has ended the job that a worker runs. */
async function endedFromOutside(reason: Reason): Promise<Ended> {
  return endsBy(`ended as ${reason}`, async (jobId) => {
    const job = await readJob(stage, jobId)
    const ending = { state: REASONS[reason].state, reason, result: null, partial: false }
    expect(await finishAgent(stage.runtime, job, { guard: { token: job.claimToken ?? '' }, ending })).not.toBeNull()
  })
}

/** A spawn that is refused makes no job; the model that asked goes on with its next step. */
async function refusedAs(reason: Reason, more: Record<string, unknown>): Promise<Ended> {
  const message = `refused as ${reason}`
  raw.answer(message, callsTool('spawnAgent', spawnOf('bot', 'never', more)), says('I was refused.'))
  const parent = await runRoot(stage, 'bot', message)
  const call = await stage.runtime.database.agentToolCall.findFirstOrThrow({ where: { jobId: parent.id } })
  expect(JSON.stringify(call.output)).toContain(`"${reason}"`)
  expect(await childrenOf(stage, parent.id)).toEqual([])
  expect(raw.requests('never')).toEqual([])
  return { jobId: parent.id, message, calls: 2 }
}

const CASES: Partial<Record<Reason, () => Promise<Ended>>> = {
  completed: () => runsInto('complete', [says('done')]),
  step_limit: () =>
    runsInto('use all', [callsTool('checkAgent', { jobId: 'x' }), says('done')], { overrides: { maxSteps: 2 } }),
  output_limit: () =>
    runsInto('too long', [
      (reply) => {
        reply.text('and so on')
        reply.finish({ incomplete: 'max_output_tokens' })
      },
    ]),
  content_filter: () => runsInto('filtered', [(reply) => reply.finish({ incomplete: 'content_filter' })]),
  empty_output: () => runsInto('empty', [(reply) => reply.finish()]),
  model_auth: () => runsInto('no key', [refuses(401, 'no')]),
  model_refused: () => runsInto('bad request', [refuses(400, 'no')]),
  context_overflow: () => runsInto('too much', [refuses(400, 'maximum context length exceeded')]),
  timeout_chunk: () => runsInto('silence', [(reply) => reply.text('Well, ')]),
  timeout_step: () => runsInto('a long step', [ticking]),
  timeout_total: () => runsInto('a long job', [ticking], { timeoutSeconds: 1 }),
  invalid_request: () => runsInto('no such tool', [], { handle: 'toolless' }),
  internal: () => runsInto('a bug', [], { handle: 'broken' }),
  aborted_by_user: () => endsBy('abort me', (jobId) => abort(stage, jobId)),
  aborted_by_parent: async () => {
    raw.answer('parent', callsTool('spawnAgent', spawnOf('bot', 'child of it', { mode: 'async' })), ticking)
    raw.answer('child of it', ticking)
    const parent = await spawnRoot(stage, 'bot', 'parent')
    await waitUntil(() => raw.requests('child of it').length === 1 && raw.requests('parent').length === 2)
    await abort(stage, parent.id)
    const [child] = await childrenOf(stage, parent.id)
    await endOf(stage, child?.id ?? '')
    return { jobId: child?.id ?? '', message: 'child of it', calls: 1 }
  },
  worker_crash: () =>
    endsBy('crash on', async (jobId) => {
      await stage.runtime.database.agentJob.update({ where: { id: jobId }, data: { crashes: 4 } })
      const job = await readJob(stage, jobId)
      await handBack(stage.runtime, job, { lostWorkerId: job.workerId ?? '' }, 'worker-lost')
    }),
  timeout_queue: async () => {
    const { id } = await spawnRoot(stage, 'bot', 'never taken', { lane: 'nobody' })
    await stage.runtime.database.agentJob.update({ where: { id }, data: { queueTimeoutMs: 1 } })
    await endOf(stage, id)
    return { jobId: id, message: 'never taken', calls: 0 }
  },
  unknown_bot: () => refusedAs('unknown_bot', { bot: { botGroup: 'forge', botHandle: 'nobody' } }),
  unknown_tool: () => refusedAs('unknown_tool', { overrides: { toolFilter: ['nothing'] } }),
  not_authorized: () => refusedAs('not_authorized', { runAsUserId: 'bob' }),
  invalid_tool_input: () =>
    runsInto('ask wrongly', [callsTool('spawnAgent', spawnOf('bot', 'never', { mode: 'soon' })), says('I cannot.')]),
  cap: async () => {
    raw.answer(
      'one too many',
      (reply) => {
        for (const id of ['one', 'two'])
          reply.call('spawnAgent', spawnOf('bot', 'within the cap', { mode: 'async' }), id)
        reply.finish()
      },
      says('one of two'),
    )
    raw.answer('within the cap', says('done'))
    const { id } = await runRoot(stage, 'bot', 'one too many')
    expect(await childrenOf(stage, id)).toHaveLength(1)
    return { jobId: id, message: 'one too many', calls: 2 }
  },
  depth_limit: async () => {
    const before = await stage.runtime.database.agentJob.count()
    const answer = await spawnAgent(stage.runtime, hostOrigin('alice', { depth: 3 }), spawnInput())
    expect(answer).toMatchObject({ kind: 'refused', refusal: { reason: 'depth_limit' } })
    expect(await stage.runtime.database.agentJob.count()).toBe(before)
    return runsInto('meanwhile', [says('done')])
  },
  budget: () => endedFromOutside('budget'),
  worker_lost: () => endedFromOutside('worker_lost'),
  aborted_by_shutdown: () => endedFromOutside('aborted_by_shutdown'),
}

const NEVER = REASON_CODES.filter((reason) => REASONS[reason].retry === 'never')

test('COST-5: every reason of the table is here', () => {
  expect(Object.keys(CASES).toSorted()).toEqual([...NEVER].toSorted())
})

test.each(NEVER)('COST-5: nothing is tried again after %s', async (reason) => {
  const { jobId, message, calls } = (await CASES[reason]?.()) ?? { jobId: '', message: '', calls: -1 }
  const ended = await readJob(stage, jobId)
  const refusal = ['unknown_bot', 'unknown_tool', 'not_authorized', 'invalid_tool_input', 'cap', 'depth_limit']
  expect(ended.reason).toBe(refusal.includes(reason) ? 'completed' : reason)
  expect(raw.requests(message)).toHaveLength(calls)
  // The reconciler has looked, and whatever was in the queue has been taken.
  await stage.runtime.outbox.dispatchDue()
  await runRoot(stage, 'bot', 'canary')
  expect(raw.requests(message)).toHaveLength(calls)
  expect(await readJob(stage, jobId)).toEqual(ended)
  expect(ended.attempt).toBeLessThanOrEqual(1)
})
