// Context layers: what a parent's state gives to its sub-agents and what these give back. Two workers share the jobs.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { readLayerRow, writeLayerState } from '@offshoot/shared/db/layer-states'
import { type ContextLayer, defineLayer, setLayerState } from '@offshoot/shared/layers'
import { readLayer, setLayer } from '@offshoot/shared/operations/layer-state'
import { insertSteer } from '@offshoot/shared/operations/steer-agent'
import { transact } from '@offshoot/shared/operations/transact'
import { openRuntime } from '@offshoot/shared/runtime'
import {
  childrenOf,
  endOf,
  eventsOf,
  openConvo,
  readJob,
  runRoot,
  spawnOf,
  spawnRoot,
  startTurnOf,
  untilLiveText,
} from '@offshoot/testing/agents'
import { callsTool, type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { tool } from 'ai'
import { z } from 'zod'
import { startWorker, type WorkerProcess } from '../src/worker.ts'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage
let second: { worker: WorkerProcess; close(): Promise<void> }

/** What each layer does; a test sets it. */
const behaviour = new Map<string, Omit<ContextLayer, 'id'>>()
const called: string[] = []

const layerOf = (id: string, timeoutsMs = {}) =>
  defineLayer({
    id,
    timeoutsMs,
    onSpawn: (call) => behaviour.get(id)?.onSpawn?.(call) ?? (behaviour.get(id)?.onSpawn === undefined ? {} : null),
    onReturn: (call) => behaviour.get(id)?.onReturn?.(call),
    onParentUpdate: (call) => behaviour.get(id)?.onParentUpdate?.(call),
  })

beforeAll(async () => {
  raw = await startRawModel()
  const layers = [
    layerOf('first'),
    layerOf('second'),
    layerOf('hasty', { onSpawn: 50, onReturn: 50, onParentUpdate: 50 }),
  ]
  const note = tool({
    inputSchema: z.object({ layerId: z.string(), state: z.string() }),
    execute: ({ layerId, state }) => setLayerState(layerId, state),
  })
  stage = await openWorkerStage(raw.baseUrl, {
    extensions: { layers, tools: [{ id: 'note', group: 'test', userSelect: false, tool: note }] },
    // Small, so that jobs go to both.
    environment: { WORKER_CONCURRENCY: '3' },
  })
  const { config, logger, extensions } = stage.runtime
  const runtime = openRuntime({ config, logger, extensions, name: 'second' })
  const worker = await startWorker(runtime)
  second = {
    worker,
    async close() {
      await worker.drain()
      await runtime.close()
    },
  }
  const toolNames = ['spawnAgent', 'checkAgent', 'note']
  await stage.putBot('bot', { toolNames })
  await stage.putBot('layered', { toolNames, layers: ['first', 'second'] })
})

afterAll(async () => {
  await second.close()
  await stage.close()
  await raw.stop()
})

const alice = { userId: 'alice', admin: false }
const write = (of: { jobId: string } | { convoId: string }, layerId: string, state: unknown, version?: number) =>
  setLayer(stage.runtime, alice, of, { layerId, state, ...(version === undefined ? {} : { version }) })
const read = (of: { jobId: string } | { convoId: string }, layerId: string) =>
  readLayer(stage.runtime, alice, of, layerId)

async function failuresOf(jobId: string): Promise<unknown[]> {
  const where = { jobId, kind: 'layer-failed' }
  return (await stage.runtime.database.agentEvent.findMany({ where, orderBy: { id: 'asc' } })).map(({ data }) => data)
}

/** How many workers run these jobs. */
async function workersOf(jobs: readonly { id: string }[]): Promise<number> {
  return new Set((await Promise.all(jobs.map(({ id }) => readJob(stage, id)))).map(({ workerId }) => workerId)).size
}

/** Behaviours of this test alone. */
function behave(layers: Record<string, Omit<ContextLayer, 'id'>>): void {
  behaviour.clear()
  called.length = 0
  for (const [id, hooks] of Object.entries(layers)) behaviour.set(id, hooks)
}

/** Says a word, and ends when the promise resolves. */
function untilDone(done: Promise<unknown>, word = 'Working.') {
  return async (reply: { text(delta: string): void; finish(): void }) => {
    reply.text(word)
    await done
    reply.finish()
  }
}

/** The user messages of a request. */
function userTexts(body: Record<string, unknown> | undefined): string[] {
  const input: { role?: string; content?: { text?: string }[] }[] = Array.isArray(body?.['input']) ? body['input'] : []
  return input
    .filter(({ role }) => role === 'user')
    .map(({ content }) => (content ?? []).map(({ text }) => text).join(''))
}

test('onSpawn runs in order before the first step, its items are in the first prompt, its state is the child’s', async () => {
  const convoId = 'chat-spawn'
  behave({
    first: {
      onSpawn: ({ parentState, job }) => {
        called.push(`first ${JSON.stringify(parentState)} ${job.message}`)
        return { childState: { from: 'first' }, items: [{ text: 'one' }, { text: 'two' }] }
      },
    },
    second: {
      onSpawn: ({ parentState }) => {
        called.push(`second ${JSON.stringify(parentState)}`)
        return { childState: 2, items: [{ text: 'three' }] }
      },
    },
  })
  await write({ convoId: 'convo-of-host' }, 'first', { goal: convoId })
  raw.answer('[context layer second]\nthree', says('Read all.'))
  const job = await runRoot(stage, 'layered', 'begin')
  expect(job).toMatchObject({ state: 'completed', result: 'Read all.', steps: 1, layers: ['first', 'second'] })
  expect(called).toEqual(['first {"goal":"chat-spawn"} begin', 'second null'])
  const [request] = raw.requests('[context layer second]\nthree')
  expect(userTexts(request?.body)).toEqual([
    'begin',
    '[context layer first]\none',
    '[context layer first]\ntwo',
    '[context layer second]\nthree',
  ])
  expect(await read({ jobId: job.id }, 'first')).toEqual({ state: { from: 'first' }, version: 1 })
  expect(await read({ jobId: job.id }, 'second')).toEqual({ state: 2, version: 1 })
})

test('null takes a layer out of that child and what it spawns, and leaves the others', async () => {
  behave({
    first: { onSpawn: () => null, onReturn: () => void called.push('first returned') },
    second: { onSpawn: () => ({ childState: 'here' }), onReturn: () => void called.push('second returned') },
  })
  raw.answer('delegate without first', callsTool('spawnAgent', spawnOf('bot', 'below')), says('Done.'))
  raw.answer('below', says('Below.'))
  const job = await runRoot(stage, 'layered', 'delegate without first')
  const [child] = await childrenOf(stage, job.id)
  expect(job).toMatchObject({ state: 'completed', layers: ['first', 'second'] })
  expect(child).toMatchObject({ state: 'completed', layers: ['second'] })
  expect(called).toEqual(['second returned', 'second returned'])
  expect(await read({ jobId: job.id }, 'first')).toBeNull()
  expect(await write({ jobId: job.id }, 'first', 'no')).toBeNull()
})

test('a parent’s layers propagate, before the bot’s own; those of a spawn replace them; [] means none', async () => {
  behave({})
  raw.answer('propagate', callsTool('spawnAgent', spawnOf('layered', 'inherits')), says('Done.'))
  raw.answer('inherits', says('Yes.'))
  const job = await runRoot(stage, 'bot', 'propagate', { layers: ['second'] })
  expect(job.layers).toEqual(['second'])
  expect((await childrenOf(stage, job.id))[0]?.layers).toEqual(['second', 'first'])
  raw.answer('none', says('Done.'))
  expect((await runRoot(stage, 'layered', 'none', { layers: [] })).layers).toEqual([])
  await expect(spawnRoot(stage, 'bot', 'x', { layers: ['first', 'constructor'] })).rejects.toThrow(
    'Unknown layers: constructor. Known: first, second, hasty.',
  )
})

test('onReturn runs in order, each on the last result, and writes the parent’s state with the end', async () => {
  behave({
    first: {
      onSpawn: () => ({ childState: 'c1' }),
      onReturn: ({ parentState, childState, result }) => ({
        parentState: { had: parentState, childState },
        result: `${result}, first`,
      }),
    },
    second: { onReturn: ({ result }) => ({ result: `${result}, second` }) },
  })
  raw.answer('parent of one', callsTool('spawnAgent', spawnOf('bot', 'child of one')), says('Done.'))
  raw.answer('child of one', says('Found it'))
  const convoId = await openConvo(stage, 'layered')
  await write({ convoId }, 'first', 'p')
  const jobId = await startTurnOf(stage, convoId, 'parent of one')
  // A turn is nobody's sub-agent: its own result stays.
  expect(await endOf(stage, jobId)).toMatchObject({ state: 'completed', result: 'Done.' })
  expect((await childrenOf(stage, jobId))[0]).toMatchObject({ result: 'Found it, first, second' })
  expect(await read({ convoId }, 'first')).toEqual({ state: { had: 'p', childState: 'c1' }, version: 2 })
  expect(await read({ jobId }, 'first')).toEqual({ state: { had: 'p', childState: 'c1' }, version: 2 })
})

test('a hook that throws, hangs or answers nonsense is recorded without secrets, and harms nothing', async () => {
  behave({
    first: {
      onSpawn: () => ({ childState: 1 }),
      onReturn: () => {
        throw new Error('no way to postgres://joe:secret@db/x')
      },
    },
    second: { onReturn: ({ result }) => ({ result: `${result}!` }) },
    hasty: { onSpawn: () => ({}), onReturn: () => new Promise(() => undefined) },
  })
  raw.answer('failing hooks', says('Fine'))
  const job = await runRoot(stage, 'bot', 'failing hooks', { layers: ['first', 'hasty', 'second'] })
  expect(job).toMatchObject({ state: 'completed', result: 'Fine!', attempt: 1 })
  expect(await failuresOf(job.id)).toEqual([
    { layerId: 'first', hook: 'onReturn', error: 'no way to postgres://[redacted]@db/x' },
    { layerId: 'hasty', hook: 'onReturn', error: 'onReturn took longer than 50 ms' },
  ])
  behave({
    hasty: { onSpawn: () => new Promise(() => undefined), onReturn: () => ({ result: 'never' }) },
    // Not what the type says.
    second: { onSpawn: () => ({ item: 'x' }) as object },
  })
  raw.answer('failing spawn', says('Fine'))
  const other = await runRoot(stage, 'bot', 'failing spawn', { layers: ['hasty', 'second'] })
  expect(other).toMatchObject({ state: 'completed', result: 'Fine' })
  expect(await failuresOf(other.id)).toMatchObject([
    { layerId: 'hasty', hook: 'onSpawn', error: 'onSpawn took longer than 50 ms' },
    { layerId: 'second', hook: 'onSpawn' },
  ])
})

test('on a conflict onReturn runs again on the new state, five times at most', async () => {
  const seen: unknown[] = []
  let disturb = 2
  const of = { convoId: 'convo-of-host' }
  behave({
    first: { onReturn: ({ result }) => ({ result: `${result} 1` }) },
    second: {
      onReturn: async ({ parentState, result }) => {
        seen.push(parentState)
        if (disturb-- > 0) await write(of, 'second', `disturbed ${disturb}`)
        return { parentState: `kept ${String(parentState)}`, result: `${result} 2` }
      },
    },
  })
  await write(of, 'second', 'start')
  raw.answer('conflicts', says('r'))
  expect(await runRoot(stage, 'layered', 'conflicts')).toMatchObject({ result: 'r 1 2', attempt: 1 })
  expect(seen).toEqual(['start', 'disturbed 1', 'disturbed 0'])
  expect(await read(of, 'second')).toMatchObject({ state: 'kept disturbed 0' })

  disturb = 100
  seen.length = 0
  const job = await runRoot(stage, 'layered', 'conflicts')
  expect(job).toMatchObject({ state: 'completed', result: 'r 1' })
  expect(seen).toHaveLength(6)
  expect(await failuresOf(job.id)).toMatchObject([{ layerId: 'second', hook: 'onReturn' }])
  expect(await eventsOf(stage, job.id)).toEqual(['spawned', 'ended', 'layer-failed'])
})

test('twenty quick writes reach children that stream, one at a time and in order, and their items the next step', async () => {
  const of = { convoId: 'convo-of-host' }
  const done = Promise.withResolvers<void>()
  const got = new Map<unknown, unknown[]>()
  let atOnce = 0
  let most = 0
  behave({
    second: {
      onSpawn: ({ job }) => ({ childState: { name: job.message, count: 0 } }),
      onParentUpdate: async ({ parentState, childState }) => {
        const { name, count } = childState as { name: string; count: number }
        if (name === 'streams 0') most = Math.max(most, ++atOnce)
        await new Promise((resolve) => setTimeout(resolve, 3))
        if (name === 'streams 0') atOnce -= 1
        got.set(name, [...(got.get(name) ?? []), parentState])
        return { childState: { name, count: count + 1 }, items: count < 19 ? [] : [{ text: `last for ${name}` }] }
      },
    },
  })
  const names = [0, 1, 2, 3].map((n) => `streams ${n}`)
  for (const name of names) {
    raw.answer(name, untilDone(done.promise))
    raw.answer(`[context layer second]\nlast for ${name}`, says(`read by ${name}`))
  }
  const jobs = await Promise.all(names.map((name) => spawnRoot(stage, 'bot', name, { layers: ['second'] })))
  for (const job of jobs) await untilLiveText(stage, job.id, 'Working.')
  expect(await workersOf(jobs)).toBe(2)
  const states = Array.from({ length: 20 }, (_, n) => `write ${n}`)
  for (const state of states) await write(of, 'second', state)
  await waitUntil(() => names.every((name) => got.get(name)?.length === 20), { what: 'all updates' })
  for (const name of names) expect(got.get(name)).toEqual(states)
  expect(most).toBe(1)
  await waitUntil(async () => {
    const rows = await Promise.all(jobs.map(({ id }) => readLayerRow(stage.runtime.database, { jobId: id }, 'second')))
    return rows.every((row) => row?.version === 21)
  })
  done.resolve()
  for (const [n, job] of jobs.entries())
    expect(await endOf(stage, job.id)).toMatchObject({ state: 'completed', result: `read by streams ${n}`, steps: 2 })
})

test('an update reaches streaming children of both workers in less than 200 ms at the median', async ({ annotate }) => {
  const of = { convoId: 'convo-of-host' }
  const done = Promise.withResolvers<void>()
  const arrived = new Map<string, number>()
  behave({
    first: {
      onSpawn: ({ job }) => ({ childState: job.message }),
      onParentUpdate: ({ parentState, childState }) =>
        void arrived.set(`${String(parentState)} ${String(childState)}`, performance.now()),
    },
  })
  const names = [0, 1, 2, 3].map((n) => `measured ${n}`)
  for (const name of names)
    raw.answer(name, async (reply) => {
      const timer = setInterval(() => reply.text('tick '), 20)
      await done.promise
      clearInterval(timer)
      reply.finish()
    })
  const jobs = await Promise.all(names.map((name) => spawnRoot(stage, 'bot', name, { layers: ['first'] })))
  for (const job of jobs) await untilLiveText(stage, job.id, 'tick')
  expect(await workersOf(jobs)).toBe(2)
  const times: number[] = []
  for (let n = 0; n < 25; n += 1) {
    const begun = performance.now()
    await write(of, 'first', `update ${n}`)
    await waitUntil(() => names.every((name) => arrived.has(`update ${n} ${name}`)))
    for (const name of names) times.push((arrived.get(`update ${n} ${name}`) ?? Infinity) - begun)
  }
  done.resolve()
  for (const job of jobs) await endOf(stage, job.id)
  times.sort((a, b) => a - b)
  await annotate(`update latency: median ${times[50]?.toFixed(1)} ms, longest ${times[99]?.toFixed(1)} ms`)
  expect(times[50]).toBeLessThan(200)
})

test('what a tool writes reaches the children of its job', async () => {
  const done = Promise.withResolvers<void>()
  behave({
    first: { onParentUpdate: ({ parentState }) => ({ childState: `heard ${String(parentState)}` }) },
  })
  raw.answer(
    'writes by tool',
    callsTool('spawnAgent', spawnOf('bot', 'listens', { mode: 'async' })),
    async (reply) => {
      await waitUntil(async () => raw.requests('listens').length > 0)
      reply.call('note', { layerId: 'first', state: 'news' }, 'call_note')
      reply.call('note', { layerId: 'second', state: 'none' }, 'call_other')
      reply.finish()
    },
    says('Written.'),
  )
  raw.answer('listens', untilDone(done.promise))
  const job = await runRoot(stage, 'bot', 'writes by tool', { layers: ['first'] })
  const [child] = await childrenOf(stage, job.id)
  expect(await read({ jobId: job.id }, 'first')).toEqual({ state: 'news', version: 1 })
  await waitUntil(async () => (await read({ jobId: child?.id ?? '' }, 'first'))?.state === 'heard news')
  done.resolve()
  await endOf(stage, child?.id ?? '')
  const [call] = await stage.runtime.database.agentToolCall.findMany({ where: { toolCallId: 'call_other' } })
  expect(JSON.stringify(call?.error)).toContain('This job does not have the layer \\"second\\". It has: first.')
})

test('no update begins once the child has begun to return, and one that runs finishes first', async () => {
  const of = { convoId: 'convo-of-host' }
  const model = Promise.withResolvers<void>()
  const update = Promise.withResolvers<void>()
  behave({
    first: {
      onParentUpdate: async ({ parentState }) => {
        called.push(`update ${String(parentState)}`)
        await update.promise
        called.push('updated')
        return { childState: parentState }
      },
      onReturn: async ({ childState }) => {
        called.push(`return ${String(childState)}`)
        await write(of, 'first', 'too late')
        await new Promise((resolve) => setTimeout(resolve, 700))
      },
    },
  })
  raw.answer('returning', untilDone(model.promise))
  const job = await spawnRoot(stage, 'bot', 'returning', { layers: ['first'] })
  await untilLiveText(stage, job.id, 'Working.')
  await write(of, 'first', 'a')
  await waitUntil(() => called.length === 1)
  await write(of, 'first', 'b')
  model.resolve()
  // The step is whole, and the job does not return while the update runs.
  await waitUntil(async () => {
    const step = await stage.runtime.database.agentStep.findFirst({ where: { jobId: job.id } })
    return step !== null && step.responseMessages !== null
  })
  update.resolve()
  expect(await endOf(stage, job.id)).toMatchObject({ state: 'completed' })
  expect(called).toEqual(['update a', 'updated', 'return a'])
})

test('a write that came while the child waited reaches it when it runs next', async () => {
  const of = { convoId: 'convo-of-host' }
  const below = Promise.withResolvers<void>()
  behave({
    first: {
      onParentUpdate: ({ parentState }) => {
        called.push(String(parentState))
        return { items: [{ text: `heard ${String(parentState)}` }] }
      },
    },
  })
  raw.answer('waits', callsTool('spawnAgent', { ...spawnOf('bot', 'is waited for') }))
  raw.answer('is waited for', untilDone(below.promise))
  raw.answer('[context layer first]\nheard second write', says('Heard both.'))
  const job = await spawnRoot(stage, 'bot', 'waits', { layers: ['first'] })
  await waitUntil(async () => (await readJob(stage, job.id)).waitingOn === 'children')
  await write(of, 'first', 'first write')
  await write(of, 'first', 'second write')
  expect(called).toEqual([])
  below.resolve()
  expect(await endOf(stage, job.id)).toMatchObject({ state: 'completed', result: 'Heard both.', steps: 2 })
  expect(called).toEqual(['first write', 'second write'])
})

test('a write whose signal was lost reaches the child with the heartbeat', async () => {
  const done = Promise.withResolvers<void>()
  behave({ first: { onParentUpdate: ({ parentState }) => void called.push(String(parentState)) } })
  raw.answer('no signal', untilDone(done.promise))
  const job = await spawnRoot(stage, 'bot', 'no signal', { layers: ['first'] })
  await untilLiveText(stage, job.id, 'Working.')
  const unsignalled = { scope: { convoId: 'convo-of-host' }, layerId: 'first', state: 'silent' }
  await transact(stage.runtime, (tx) => writeLayerState(tx.db, unsignalled))
  await waitUntil(() => called.includes('silent'))
  done.resolve()
  expect(await endOf(stage, job.id)).toMatchObject({ state: 'completed' })
  expect(called).toEqual(['silent'])
})

test('an update that hangs is recorded after its time, and the next one comes', async () => {
  const of = { convoId: 'convo-of-host' }
  const done = Promise.withResolvers<void>()
  behave({
    hasty: {
      onParentUpdate: ({ parentState }) =>
        parentState === 'hangs' ? new Promise(() => undefined) : void called.push(String(parentState)),
    },
  })
  raw.answer('hanging update', untilDone(done.promise))
  const job = await spawnRoot(stage, 'bot', 'hanging update', { layers: ['hasty'] })
  await untilLiveText(stage, job.id, 'Working.')
  await write(of, 'hasty', 'hangs')
  await write(of, 'hasty', 'comes')
  await waitUntil(() => called.includes('comes'))
  done.resolve()
  expect(await endOf(stage, job.id)).toMatchObject({ state: 'completed', result: 'Working.' })
  expect(await failuresOf(job.id)).toEqual([
    { layerId: 'hasty', hook: 'onParentUpdate', error: 'onParentUpdate took longer than 50 ms' },
  ])
})

test('a steer that comes while onReturn runs is read first, and the hooks run for the end that comes', async () => {
  const of = { convoId: 'convo-of-host' }
  const results: string[] = []
  behave({
    first: {
      onReturn: async ({ result }) => {
        results.push(result)
        if (results.length === 1)
          await transact(stage.runtime, (tx) =>
            insertSteer(tx, jobId, { key: 'wait', text: 'wait!', actorId: 'alice' }),
          )
        return { parentState: results.length }
      },
    },
  })
  const started = Promise.withResolvers<void>()
  raw.answer('is steered', untilDone(started.promise, 'One.'))
  raw.answer('wait!', says('Two.'))
  const before = (await read(of, 'first'))?.version ?? 0
  const { id: jobId } = await spawnRoot(stage, 'bot', 'is steered', { layers: ['first'] })
  await untilLiveText(stage, jobId, 'One.')
  started.resolve()
  expect(await endOf(stage, jobId)).toMatchObject({ state: 'completed', result: 'Two.', steps: 2 })
  expect(results).toEqual(['One.', 'Two.'])
  expect(await read(of, 'first')).toEqual({ state: 2, version: before + 1 })
})

test('what one sub-agent returns reaches its sibling, whose state a tool may write meanwhile', async () => {
  const done = Promise.withResolvers<void>()
  let runs = 0
  behave({
    second: {
      onReturn: ({ result }) => ({ parentState: result }),
      onParentUpdate: async ({ parentState, childState }) => {
        // Somebody writes the child's state while the first run of the hook decides.
        if (runs++ === 0) await write({ jobId: sibling.id }, 'second', 'written by hand')
        return { childState: `${String(childState)}, then ${String(parentState)}` }
      },
    },
  })
  raw.answer('the sibling', untilDone(done.promise))
  raw.answer('the quick one', says('a finding'))
  const sibling = await spawnRoot(stage, 'bot', 'the sibling', { layers: ['second'] })
  await untilLiveText(stage, sibling.id, 'Working.')
  await runRoot(stage, 'bot', 'the quick one', { layers: ['second'] })
  await waitUntil(async () => (await read({ jobId: sibling.id }, 'second'))?.version === 2)
  expect(await read({ jobId: sibling.id }, 'second')).toMatchObject({ state: 'written by hand, then a finding' })
  expect(runs).toBe(2)
  done.resolve()
  expect(await endOf(stage, sibling.id)).toMatchObject({ state: 'completed' })
})
