// Budgets and prices: what calls may start, what ends with `budget`, and what a job is known to have cost.
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { spawnAgent } from '@offshoot/shared/operations/spawn-agent'
import { readTree } from '@offshoot/shared/operations/list-agents'
import { retryAgent } from '@offshoot/shared/operations/retry-agent'
import { abort, childrenOf, endOf, eventsOf, readJob, runRoot, spawnOf, spawnRoot } from '@offshoot/testing/agents'
import { hostOrigin, spawnInput } from '@offshoot/testing/jobs-without-worker'
import { callsTool, type RawModel, type RawScript, says, startRawModel, ticking } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const GRANDCHILDREN = 200
const CONCURRENCY = 30
const ALICE = { userId: 'alice', admin: false }

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    environment: {
      WORKER_CONCURRENCY: String(CONCURRENCY),
      MAX_CHILDREN_PER_JOB: '300',
      MAX_JOBS_PER_TREE: '300',
      MAX_ACTIVE_JOBS_PER_USER: '300',
    },
    extensions: {
      prices: { 'openai:priced': { inputUsdPerMillion: 2, cachedInputUsdPerMillion: 0.5, outputUsdPerMillion: 10 } },
    },
  })
  await stage.putBot('bot')
  await stage.putBot('priced', { modelName: 'priced' })
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

/** A step that looks at a job and costs this much. */
function looks(usage: { input: number; output: number }): RawScript {
  return (reply) => {
    reply.text('Let me look.')
    reply.call('checkAgent', { jobId: 'nothing' }, 'call_check')
    reply.finish({ usage })
  }
}

function concludes(text: string, usage: { input: number; output: number }): RawScript {
  return (reply) => {
    reply.text(text)
    reply.finish({ usage })
  }
}

test('COST-2: a job whose budget is spent ends with `budget` before its next call, and keeps what it has', async () => {
  raw.answer('spend it', looks({ input: 900, output: 100 }), says('never said'))
  const job = await runRoot(stage, 'bot', 'spend it', { budget: { maxTotalTokens: 1_000 } })
  expect(job).toMatchObject({
    state: 'failed',
    reason: 'budget',
    error: 'The budget of this job is spent: 1000 of 1000 tokens.',
    result: 'Let me look.',
    partial: true,
    totalTokens: 1_000n,
    reservedTokens: 0n,
  })
  expect(raw.requests('spend it')).toHaveLength(1)
})

test('COST-5: a retry of such a job needs a larger budget, and goes on counting', async () => {
  raw.answer('spend more', looks({ input: 900, output: 200 }), concludes('done', { input: 10, output: 10 }))
  const { id } = await runRoot(stage, 'bot', 'spend more', { budget: { maxTotalTokens: 1_000 } })
  expect(await retryAgent(stage.runtime, ALICE, { jobId: id }, 'alice')).toMatchObject({
    kind: 'refused',
    refusal: { reason: 'budget', error: expect.stringContaining('1100 of 1000 tokens. Give a larger budget') },
  })
  expect(await readJob(stage, id)).toMatchObject({ state: 'failed', generation: 1 })
  await retryAgent(stage.runtime, ALICE, { jobId: id, budget: { maxTotalTokens: 2_000 } }, 'alice')
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'done', totalTokens: 1_120n })
  expect(raw.requests('spend more')).toHaveLength(2)
})

test('COST-2: a child spends the budget above it, and a spawn under a spent one is refused', async () => {
  raw.answer(
    'delegate',
    callsTool('spawnAgent', spawnOf('bot', 'eat all'), 'call_1'),
    callsTool('spawnAgent', spawnOf('bot', 'too late'), 'call_2'),
  )
  raw.answer('eat all', concludes('eaten', { input: 4_000, output: 1_000 }))
  const root = await runRoot(stage, 'bot', 'delegate', { budget: { maxTotalTokens: 5_000 } })
  expect(root).toMatchObject({ state: 'failed', reason: 'budget', totalTokens: 15n })
  expect(await childrenOf(stage, root.id)).toMatchObject([{ state: 'completed', totalTokens: 5_000n, budgeted: true }])
  const tree = await readTree(stage.runtime, ALICE, root.id)
  expect(tree?.jobs.map((job) => job.subtree.usage.totalTokens)).toEqual([5_015, 5_000])
})

test('COST-2 SEC-4: a budget that is larger than what is left above it is refused by name', async () => {
  raw.answer('small', ticking)
  const { id, convoId, rootJobId } = await spawnRoot(stage, 'bot', 'small', { budget: { maxTotalTokens: 1_000 } })
  const parent = {
    jobId: id,
    rootJobId,
    ancestorIds: [],
    triggeredByIds: ['alice'],
    step: 0,
    toolCallId: 'host:1',
    tools: { native: [], mcp: [], servers: [] },
    grant: 'self' as const,
    runner: 'queue' as const,
    layers: [],
    deadlineMsLeft: 60_000,
  }
  const origin = hostOrigin('alice', { depth: 1, parentConvoId: convoId, parent })
  const bot = { botGroup: 'forge', botHandle: 'bot' }
  expect(await spawnAgent(stage.runtime, origin, spawnInput({ bot, budget: { maxTotalTokens: 1_001 } }))).toMatchObject(
    {
      kind: 'refused',
      refusal: { reason: 'budget', error: expect.stringContaining('budget.maxTotalTokens 1001 is more than the') },
    },
  )
  expect(await childrenOf(stage, id)).toEqual([])
  await abort(stage, id)
})

test(`COST-2: ${GRANDCHILDREN} grandchildren at once overspend a token budget by no more than the calls in flight`, async () => {
  const usage = { input: 1_500, output: 500 }
  const works = concludes('worked', usage)
  raw.answer('lead', callsTool('spawnAgent', spawnOf('bot', 'spread'), 'call_0'))
  raw.answer('spread', (reply) => {
    for (let at = 0; at < GRANDCHILDREN; at += 1) reply.call('spawnAgent', spawnOf('bot', `work ${at}`), `call_${at}`)
    reply.finish({ usage })
  })
  for (let at = 0; at < GRANDCHILDREN; at += 1) raw.answer(`work ${at}`, works)
  const root = await spawnRoot(stage, 'bot', 'lead', { budget: { maxTotalTokens: 100_000 } })
  expect(await endOf(stage, root.id, 50_000)).toMatchObject({ state: 'failed', reason: 'budget' })
  const jobs = await stage.runtime.database.agentJob.findMany({ where: { rootJobId: root.id } })
  expect(jobs).toHaveLength(GRANDCHILDREN + 2)
  const spent = jobs.reduce((sum, job) => sum + Number(job.totalTokens ?? 0n), 0)
  expect(spent).toBeGreaterThanOrEqual(100_000)
  // A call that reserves the rest may use more than that: of so many calls that run at once, each at the most by itself.
  expect(spent).toBeLessThanOrEqual(100_000 + CONCURRENCY * 2_000)
  const ends = jobs.filter((job) => job.depth === 3).map((job) => `${job.state} ${job.reason}`)
  expect(new Set(ends)).toEqual(new Set(['completed completed', 'failed budget']))
  expect(jobs.every((job) => job.reservedTokens === 0n)).toBe(true)
})

test('COST-1: an abort gives back what a call under way had reserved', async () => {
  raw.answer('tick under a budget', ticking)
  const { id } = await spawnRoot(stage, 'bot', 'tick under a budget', { budget: { maxTotalTokens: 50_000 } })
  await waitUntil(async () => (await readJob(stage, id)).reservedTokens > 0n)
  await abort(stage, id)
  expect(await readJob(stage, id)).toMatchObject({ state: 'aborted', reservedTokens: 0n })
})

test('a job waits, holding nothing, while others have reserved what is left', async () => {
  raw.answer(
    'share',
    (reply) => {
      reply.call('spawnAgent', spawnOf('bot', 'hold'), 'call_0')
      reply.call('spawnAgent', spawnOf('bot', 'queue up'), 'call_1')
      reply.finish()
    },
    says('shared'),
  )
  // Whichever starts first holds the rest until the other one has to wait for it.
  const held = Promise.withResolvers<undefined>()
  const holds: RawScript = async (reply) => {
    reply.text('holding')
    await held.promise
    reply.finish()
  }
  raw.answer('hold', holds)
  raw.answer('queue up', holds)
  const root = await spawnRoot(stage, 'bot', 'share', { budget: { maxTotalTokens: 3_000 } })
  const waiting = await waitUntil(async () =>
    (await childrenOf(stage, root.id)).find((child) => child.waitingOn === 'retry'),
  )
  expect(waiting).toMatchObject({ claimToken: null, stepRetries: 0 })
  held.resolve(undefined)
  expect(await endOf(stage, root.id)).toMatchObject({ state: 'completed', result: 'shared' })
  expect(await eventsOf(stage, waiting.id)).toContain('waiting')
})

describe('prices', () => {
  test('STATE-18: a job of a model with a price has a cost, of one without an unknown one', async () => {
    raw.answer('cost me', looks({ input: 1_000, output: 100 }), concludes('done', { input: 2_000, output: 50 }))
    const priced = await runRoot(stage, 'priced', 'cost me')
    // (3,000 × 2 + 150 × 10) micro-dollars.
    expect(priced.costMicroUsd).toBe(7_500n)
    raw.answer('cost nobody knows', says('done'))
    expect((await runRoot(stage, 'bot', 'cost nobody knows')).costMicroUsd).toBeNull()
  })

  test('a budget in money ends a job, too', async () => {
    raw.answer('spend money', looks({ input: 1_000, output: 100 }), says('never said'))
    expect(await runRoot(stage, 'priced', 'spend money', { budget: { maxCostUsd: 0.003 } })).toMatchObject({
      reason: 'budget',
      error: 'The budget of this job is spent: 0.003 of 0.003 US dollars.',
    })
  })

  test('SEC-4: a worker that does not know the price starts no call under a budget in money', async () => {
    raw.answer('no price here', says('never said'))
    const lane = stage.runtime.deliveries.lane('default')
    await lane.pause()
    const { id } = await spawnRoot(stage, 'bot', 'no price here', { budget: { maxTotalTokens: 50_000 } })
    await stage.runtime.database.agentJob.update({ where: { id }, data: { maxCostMicroUsd: 1_000_000n } })
    await lane.resume()
    expect(await endOf(stage, id)).toMatchObject({
      state: 'failed',
      reason: 'budget',
      error: 'The price of its model is not known here, so its budget in money cannot be kept.',
    })
    expect(raw.requests('no price here')).toEqual([])
  })

  test('a budget in money is refused for a model whose price is not known', async () => {
    const answer = await spawnAgent(
      stage.runtime,
      hostOrigin('alice'),
      spawnInput({ bot: { botGroup: 'forge', botHandle: 'bot' }, budget: { maxCostUsd: 1 } }),
    )
    expect(answer).toMatchObject({
      kind: 'refused',
      refusal: { reason: 'budget', error: expect.stringContaining('The price of openai:gpt-5 is not known') },
    })
  })
})
