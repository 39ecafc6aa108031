// How a sub-agent ends, and what its parent's model reads of that: once, and the truth. On a Redis of this file's own, which
// can be full.
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Reason, REASONS } from '@offshoot/shared/contracts/reason'
import {
  abort,
  childrenOf,
  endOf,
  eventsOf,
  readJob,
  spawnOf,
  spawnRoot,
  untilLiveText,
} from '@offshoot/testing/agents'
import { type OwnRedis, startOwnRedis } from '@offshoot/testing/own-redis'
import { type RawModel, type RawScript, says, startRawModel, ticking } from '@offshoot/testing/raw-model'
import { redisCommand } from '@offshoot/testing/redis-command'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let redis: OwnRedis
let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  redis = await startOwnRedis()
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { environment: { REDIS_URL: redis.url, LOG_LEVEL: 'silent' } })
  await stage.putBot('bot')
  raw.answer(/^\[outcome of your sub-agent/, says('I have read it.'))
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
  await redis.stop()
})

const setMemory = (maxmemory: string) => redisCommand(redis.url, 'CONFIG', 'SET', 'maxmemory', maxmemory)
const lane = () => stage.runtime.deliveries.lane('default')

/** No worker takes it before it ends. */
const STAYS_QUEUED = {
  before: () => lane().pause(),
  after: () => lane().resume(),
}

interface End {
  child: RawScript
  spawn?: Record<string, unknown>
  /** Before the child is spawned. */
  before?: () => Promise<unknown>
  end?: (childId: string) => Promise<unknown>
  /** Once it has ended. */
  after?: () => Promise<unknown>
  read: { state: string; reason: Reason; result: unknown; partial?: true }
}

const TICKS = expect.stringMatching(/^(tick )+$/)
const abortByUser = (childId: string) => abort(stage, childId)
const untilItTicks = (childId: string) => untilLiveText(stage, childId, 'tick')

const ends: [how: string, End][] = [
  ['completes', { child: says('done'), read: { state: 'completed', reason: 'completed', result: 'done' } }],
  [
    'is refused by its model',
    {
      child: (reply) => reply.status(400, { message: 'no' }),
      read: { state: 'failed', reason: 'model_refused', result: null },
    },
  ],
  [
    'is cut in the middle of its answer',
    {
      child: ticking,
      end: async (childId) => {
        await untilItTicks(childId)
        cut()
      },
      read: { state: 'failed', reason: 'upstream_disconnect', result: TICKS, partial: true },
    },
  ],
  [
    'has no time left in the middle of its answer',
    {
      child: ticking,
      spawn: { timeoutSeconds: 1 },
      read: { state: 'failed', reason: 'timeout_total', result: TICKS, partial: true },
    },
  ],
  [
    'is aborted in the middle of its answer',
    {
      child: ticking,
      end: async (childId) => {
        await untilItTicks(childId)
        await abortByUser(childId)
      },
      read: { state: 'aborted', reason: 'aborted_by_user', result: TICKS, partial: true },
    },
  ],
  [
    'is aborted in the queue',
    {
      child: says('never'),
      ...STAYS_QUEUED,
      end: abortByUser,
      read: { state: 'aborted', reason: 'aborted_by_user', result: null },
    },
  ],
  [
    'waits too long in the queue',
    {
      child: says('never'),
      ...STAYS_QUEUED,
      end: endQueueTime,
      read: { state: 'failed', reason: 'timeout_queue', result: null },
    },
  ],
  [
    'has a delivery that Redis refuses, until it is too late',
    {
      child: says('never'),
      async before() {
        await setMemory('1mb')
        await waitUntil(() => !stage.runtime.signals.pulse.isOk(), { what: 'a Redis that is full' })
      },
      end: endQueueTime,
      after: () => setMemory('0'),
      read: { state: 'failed', reason: 'timeout_queue', result: null },
    },
  ],
]

async function endQueueTime(childId: string): Promise<void> {
  await stage.runtime.database.agentJob.update({ where: { id: childId }, data: { queueTimeoutMs: 1 } })
}

/** Cuts the answers that tick now. */
let cut: () => void = () => undefined

/** What the newest prompt of this parent says of the ends of its sub-agents: in tool results, and in its inbox. */
function endsRead(message: string): unknown[] {
  const request = raw.requests().findLast(({ body }) => JSON.stringify(body).includes(`"${message}"`))
  const items = (Array.isArray(request?.body['input']) ? request.body['input'] : []) as {
    type?: string
    output?: string
    content?: { text?: string }[] | string
  }[]
  const results = items
    .filter(({ type }) => type === 'function_call_output')
    // The SDK gives an error result to the provider as `{ error }`.
    .map(({ output }): { error?: object } => JSON.parse(output ?? ''))
    .map((read) => (typeof read.error === 'object' ? { isError: true, ...read.error } : read))
  const texts = items.flatMap(({ content }) => (Array.isArray(content) ? content : [])).map(({ text = '' }) => text)
  const outcomes = texts
    .filter((text) => text.startsWith('[outcome of your sub-agent'))
    .map((text): object => JSON.parse(text.slice(text.indexOf('\n') + 1)))
  // An async spawn is answered with the id of its job, which is no end.
  return [...results.filter((read) => 'reason' in read), ...outcomes]
}

describe.each(['sync', 'async'] as const)('LOSS-6 STATE-9: a parent of a %s sub-agent', (mode) => {
  test.each(ends)('reads once, and truly, that it %s', async (how, { child, spawn, before, end, after, read }) => {
    const parentMessage = `${mode} parent: ${how}`
    const childMessage = `${mode} child: ${how}`
    const begin = Promise.withResolvers<void>()
    const inMode = mode === 'sync' ? { mode } : { mode, notifyParent: true }
    raw.answer(
      parentMessage,
      async (reply) => {
        reply.text('One moment.')
        await begin.promise
        reply.call('spawnAgent', spawnOf('bot', childMessage, { ...inMode, ...spawn }), 'call_1')
        reply.finish()
      },
      says('I wait.'),
    )
    const waits = Promise.withResolvers<void>()
    raw.answer(childMessage, async (reply, request) => {
      cut = () => reply.reset()
      await waits.promise
      await child(reply, request)
    })
    const { id } = await spawnRoot(stage, 'bot', parentMessage)
    await untilLiveText(stage, id, 'One moment.')
    await before?.()
    begin.resolve()
    const [row] = await waitUntil(async () => {
      const children = await childrenOf(stage, id)
      return children.length === 1 && (await readJob(stage, id)).waitingOn !== null && children
    })
    const childId = row?.id ?? ''
    waits.resolve()
    await end?.(childId)
    const ended = await endOf(stage, childId)
    await after?.()
    expect(await endOf(stage, id, 25_000)).toMatchObject({ state: 'completed', attempt: 2 })
    expect(await eventsOf(stage, id)).toEqual(['spawned', 'waiting', 'woken', 'ended'])
    expect(ended).toMatchObject({ state: read.state, reason: read.reason, result: read.result })
    const asResult = mode === 'sync' ? { jobId: childId } : {}
    const asError = { error: expect.stringContaining(REASONS[read.reason].sentence) }
    const asErrorResult = mode === 'sync' ? { isError: true } : {}
    const completed = read.state === 'completed'
    expect(endsRead(parentMessage)).toEqual([
      { ...read, ...asResult, ...(completed ? {} : { ...asError, ...asErrorResult }) },
    ])
  })
})
