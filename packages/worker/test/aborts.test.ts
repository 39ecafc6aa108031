// Abort, in every phase of a job. One slot, so that a job that goes on holding it shows.
import { jsonSchema } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { requestAbort } from '@offshoot/shared/operations/abort-agent'
import { lockTree, transact } from '@offshoot/shared/operations/transact'
import {
  abort,
  answerOf,
  childrenOf,
  endOf,
  eventsOf,
  readJob,
  runRoot,
  spawnOf,
  spawnRoot,
  untilLiveText,
} from '@offshoot/testing/agents'
import { callsTool, type RawModel, says, startRawModel, staysSilent, ticking } from '@offshoot/testing/raw-model'
import { openTestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage

/** Calls of the tool `ignore` that are under way, to be ended by the test: it looks at no signal. */
const ignoring = new Map<string, PromiseWithResolvers<string>>()

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    environment: { WORKER_CONCURRENCY: '1' },
    extensions: {
      tools: [
        {
          id: 'ignore',
          group: 'test',
          userSelect: true,
          tool: {
            inputSchema: jsonSchema<{ as: string }>({ type: 'object' }),
            async execute({ as }: { as: string }) {
              const call = Promise.withResolvers<string>()
              ignoring.set(as, call)
              return call.promise
            },
          },
        },
      ],
    },
  })
  await stage.putBot('bot', { toolNames: ['spawnAgent', 'abortAgent', 'ignore'] })
  raw.answer('are you free?', says('yes'))
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const closedOf = (message: string) => waitUntil(() => raw.requests(message).at(-1)?.closedByPeerAt, { within: 2_000 })

/** The only slot is free again: another job runs through it. */
const slotIsFree = async () => expect((await runRoot(stage, 'bot', 'are you free?')).state).toBe('completed')

test('LOSS-3: what waits for more of its text when the abort comes is kept, too', async () => {
  // In a process that feeds so many streams a text waits for a second.
  const streams = Array.from({ length: 2_000 }, () => stage.runtime.extensions.mergeWindow.open())
  raw.answer('begin', (reply) => {
    reply.text('one ')
    reply.text('two')
  })
  try {
    const { id } = await spawnRoot(stage, 'bot', 'begin')
    await untilLiveText(stage, id, 'one ')
    expect(await abort(stage, id)).toMatchObject({ state: 'aborted', partialResult: 'one two' })
  } finally {
    for (const close of streams) close()
  }
})

test('LOSS-3: an abort in the middle of a text ends the job within 1 s and keeps what was said', async () => {
  raw.answer('talk', callsTool('abortAgent', { jobId: 'nothing' }), ticking)
  const { id } = await spawnRoot(stage, 'bot', 'talk')
  await untilLiveText(stage, id, 'tick tick')
  const before = performance.now()
  const answer = await abort(stage, id, 'I know enough')
  expect(performance.now() - before).toBeLessThan(1_000)
  expect(answer).toMatchObject({ state: 'aborted', partialResult: expect.stringMatching(/^(tick )+$/) })
  const job = await readJob(stage, id)
  expect(job).toMatchObject({
    state: 'aborted',
    reason: 'aborted_by_user',
    error: 'I know enough',
    partial: true,
    result: answer.partialResult,
    steps: 1,
    abortRequestedBy: 'alice',
    inputTokens: 10n,
  })
  expect(await answerOf(stage, id)).toMatchObject([
    { type: 'step-start' },
    { type: 'tool-abortAgent', state: 'output-available' },
    { type: 'step-start' },
    { type: 'text', text: answer.partialResult },
  ])
  await closedOf('talk')
  await slotIsFree()
})

test('STATE-2: an abort before the model has answered anything is an abort', async () => {
  raw.answer('say nothing', staysSilent)
  const { id } = await spawnRoot(stage, 'bot', 'say nothing')
  await waitUntil(() => raw.requests('say nothing').length > 0)
  expect(await abort(stage, id)).toMatchObject({ state: 'aborted' })
  expect(await readJob(stage, id)).toMatchObject({ reason: 'aborted_by_user', result: null, partial: false, steps: 0 })
  await closedOf('say nothing')
})

test('COST-9: an abort ends the pause before another try', async () => {
  raw.answer('later', (reply) => reply.status(429, { message: 'wait' }, { 'retry-after': '15' }))
  const { id } = await spawnRoot(stage, 'bot', 'later')
  await waitUntil(() => raw.requests('later').length === 1)
  const before = performance.now()
  expect(await abort(stage, id)).toMatchObject({ state: 'aborted' })
  expect(performance.now() - before).toBeLessThan(1_000)
  expect(raw.requests('later')).toHaveLength(1)
})

test('STUCK-10: an abort in a tool that ignores it ends the job within 1 s, and its late result changes nothing', async () => {
  raw.answer('be stubborn', callsTool('ignore', { as: 'stubborn' }), says('never'))
  const { id } = await spawnRoot(stage, 'bot', 'be stubborn')
  const call = await waitUntil(() => ignoring.get('stubborn'))
  const before = performance.now()
  expect(await abort(stage, id)).toMatchObject({ state: 'aborted' })
  expect(performance.now() - before).toBeLessThan(1_000)
  await slotIsFree()
  const ended = await readJob(stage, id)
  call.resolve('too late')
  await slotIsFree()
  expect(await readJob(stage, id)).toEqual(ended)
  const calls = await stage.runtime.database.agentToolCall.findMany({ where: { jobId: id } })
  expect(calls).toMatchObject([{ toolName: 'ignore', finishedAt: null, output: null }])
  expect(raw.requests('be stubborn')).toHaveLength(1)
})

test('STATE-2: an abort in a tool that throws then is an abort, and no tool error', async () => {
  raw.answer('be touchy', callsTool('ignore', { as: 'touchy' }))
  const { id } = await spawnRoot(stage, 'bot', 'be touchy')
  const call = await waitUntil(() => ignoring.get('touchy'))
  const aborting = abort(stage, id)
  call.reject(new DOMException('stopped', 'AbortError'))
  expect(await aborting).toMatchObject({ state: 'aborted' })
  await slotIsFree()
})

test('an abort of a queued job ends it at once, takes its delivery away, and no model is called', async () => {
  raw.answer('hold the slot', callsTool('ignore', { as: 'slot' }), says('done'))
  raw.answer('wait in line', says('never'))
  const holder = await spawnRoot(stage, 'bot', 'hold the slot')
  const call = await waitUntil(() => ignoring.get('slot'))
  const queued = await spawnRoot(stage, 'bot', 'wait in line')
  await waitUntil(() => stage.runtime.deliveries.isUnderway('default', queued.id, 1))
  expect(await abort(stage, queued.id)).toMatchObject({ state: 'aborted', abortedDescendants: 0 })
  expect(await readJob(stage, queued.id)).toMatchObject({ reason: 'aborted_by_user', attempt: 0, partial: false })
  await waitUntil(async () => !(await stage.runtime.deliveries.isUnderway('default', queued.id, 1)))
  call.resolve('go on')
  expect(await endOf(stage, holder.id)).toMatchObject({ state: 'completed' })
  await slotIsFree()
  expect(raw.requests('wait in line')).toEqual([])
})

test('COST-1: an abort of a job that waits on its children ends the whole subtree', async () => {
  raw.answer('top', callsTool('spawnAgent', spawnOf('bot', 'middle')))
  raw.answer('middle', callsTool('spawnAgent', spawnOf('bot', 'bottom')))
  raw.answer('bottom', ticking)
  const top = await spawnRoot(stage, 'bot', 'top')
  const middle = await waitUntil(async () => (await childrenOf(stage, top.id))[0])
  const bottom = await waitUntil(async () => (await childrenOf(stage, middle.id))[0])
  await untilLiveText(stage, bottom.id, 'tick')
  expect(await abort(stage, top.id)).toMatchObject({ state: 'aborted', abortedDescendants: 2 })
  expect(await readJob(stage, top.id)).toMatchObject({ reason: 'aborted_by_user' })
  expect(await readJob(stage, middle.id)).toMatchObject({ state: 'aborted', reason: 'aborted_by_parent' })
  expect(await endOf(stage, bottom.id, 2_000)).toMatchObject({
    state: 'aborted',
    reason: 'aborted_by_parent',
    partial: true,
  })
  // The child that ends last finds nobody to wake.
  expect(await eventsOf(stage, top.id)).toEqual(['spawned', 'waiting', 'abort-requested', 'ended'])
  await slotIsFree()
})

test('abortAgent stops a sub-agent, and the parent’s model reads that', async () => {
  const outputs: unknown[] = []
  raw.answer(
    'spawn and abort',
    callsTool('spawnAgent', spawnOf('bot', 'background', { mode: 'async' })),
    (reply, { body }) => {
      reply.call('abortAgent', { jobId: outputsOf(body).at(-1)?.['jobId'], reason: 'no need' }, 'call_abort')
      reply.finish()
    },
    (reply, { body }) => {
      outputs.push(...outputsOf(body).slice(1))
      reply.text('stopped it')
      reply.finish()
    },
  )
  raw.answer('background', ticking)
  const parent = await runRoot(stage, 'bot', 'spawn and abort')
  const [child] = await childrenOf(stage, parent.id)
  expect(parent).toMatchObject({ state: 'completed', result: 'stopped it' })
  expect(child).toMatchObject({ state: 'aborted', reason: 'aborted_by_parent', error: 'no need' })
  expect(outputs).toEqual([{ jobId: child?.id, state: 'aborted', abortedDescendants: 0 }])
})

test('an abort of a job that has ended changes nothing and says so', async () => {
  const job = await runRoot(stage, 'bot', 'are you free?')
  expect(await abort(stage, job.id)).toEqual({
    jobId: job.id,
    state: 'completed',
    partialResult: 'yes',
    abortedDescendants: 0,
    note: 'The job had ended before: completed. Nothing was changed.',
  })
  expect(await readJob(stage, job.id)).toEqual(job)
})

test('STUCK-4: an abort whose signal is lost stops the job at the next heartbeat', async () => {
  // Another prefix has other channels: what this runtime publishes reaches no worker.
  const deaf = await openTestStage({ environment: { DATABASE_URL: stage.config.DATABASE_URL } })
  try {
    raw.answer('go on and on', ticking)
    const job = await spawnRoot(stage, 'bot', 'go on and on')
    await untilLiveText(stage, job.id, 'tick')
    const before = performance.now()
    await requestAbort(deaf.runtime, job, { by: 'alice', reason: 'aborted_by_user', text: null })
    expect(await endOf(stage, job.id, 3_000)).toMatchObject({ state: 'aborted', partial: true })
    expect(performance.now() - before).toBeLessThan(stage.config.WORKER_HEARTBEAT_MS + 1_000)
  } finally {
    await deaf.close()
  }
})

test.each([
  ['a root', {}],
  ['a job whose end is told by an event', { completionEvent: { name: 'told' } }],
])(
  'STATE-2: an abort that is stored before the model’s last word makes %s no completed one, though its signal is lost',
  async (which, more) => {
    const deaf = await openTestStage({ environment: { DATABASE_URL: stage.config.DATABASE_URL } })
    try {
      const spawned = Promise.withResolvers<string>()
      raw.answer(`wait for it, ${which}`, async (reply) => {
        const job = await readJob(stage, await spawned.promise)
        await requestAbort(deaf.runtime, job, { by: 'alice', reason: 'aborted_by_user', text: null })
        reply.text('all of it')
        reply.finish()
      })
      const { id } = await spawnRoot(stage, 'bot', `wait for it, ${which}`, more)
      spawned.resolve(id)
      const aborted = {
        state: 'aborted',
        reason: 'aborted_by_user',
        result: 'all of it',
        partial: true,
        totalTokens: 15n,
      }
      expect(await endOf(stage, id)).toMatchObject(aborted)
      expect(await answerOf(stage, id)).toMatchObject([{ type: 'step-start' }, { type: 'text', text: 'all of it' }])
    } finally {
      await deaf.close()
    }
  },
)

test('STUCK-5: a job that is aborted while it is picked up stays aborted', async () => {
  raw.answer('pick me up', says('done'))
  const ends = await Promise.all(
    Array.from({ length: 20 }, async () => {
      const { id } = await spawnRoot(stage, 'bot', 'pick me up')
      const answer = await abort(stage, id)
      return { answer, job: await endOf(stage, id) }
    }),
  )
  for (const { answer, job } of ends) expect(answer.state).toBe(job.state)
  const ids = ends.map(({ job }) => job.id)
  const terminal = await stage.runtime.database.agentEvent.count({ where: { jobId: { in: ids }, kind: 'ended' } })
  expect(terminal).toBe(20)
})

test('STATE-3: a deadline that passes while spawns are stored is timeout_total', async () => {
  raw.answer('be late', callsTool('spawnAgent', spawnOf('bot', 'are you free?', { mode: 'async' })), says('never'))
  const job = await spawnRoot(stage, 'bot', 'be late', { timeoutSeconds: 1 })
  // Holds the lock that the spawns need until the deadline has passed.
  await transact(stage.runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    await waitUntil(() => raw.requests('be late').length === 1)
    await waitUntil(() => Date.now() > job.createdAt.getTime() + 1_200)
  })
  expect(await endOf(stage, job.id)).toMatchObject({ state: 'failed', reason: 'timeout_total' })
  await slotIsFree()
})

function outputsOf({ input }: Record<string, unknown>): Record<string, unknown>[] {
  const items: { type?: string; output?: string }[] = Array.isArray(input) ? input : []
  return items.filter((item) => item.type === 'function_call_output').map(({ output }) => JSON.parse(output ?? '{}'))
}
