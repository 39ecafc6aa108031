// Deploys: a worker process is asked to end while it has work. And what two workers do for one tree.
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  abort,
  childrenOf,
  endOf,
  eventsOf,
  readJob,
  runRoot,
  spawnOf,
  spawnRoot,
  untilLiveText,
} from '@offshoot/testing/agents'
import type { TestProcess } from '@offshoot/testing/processes'
import { callsTool, type RawModel, says, staysSilent, ticking } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openSystemStage, type SystemStage } from './system-stage.ts'

let stage: SystemStage
let raw: RawModel

beforeAll(async () => {
  stage = await openSystemStage({ WORKER_DRAIN_MS: '1500' })
  raw = stage.raw
})

beforeEach(() => stage.fleet.replenish())

afterAll(() => stage.close())

/** Asks a worker to end, and waits until it has begun to. */
async function drain(worker: TestProcess): Promise<void> {
  worker.kill('SIGTERM')
  await waitUntil(async () => {
    const row = await stage.runtime.database.worker.findFirst({ where: { pid: worker.pid } })
    return row === null || row.drainingAt !== null
  })
}

describe('SIGTERM', () => {
  test('LOSS-11: a running job is handed over at the end of its step, nothing is repeated, and the exit code is 0', async () => {
    const finish = Promise.withResolvers<void>()
    raw.answer(
      'hand me over',
      async (reply) => {
        reply.text('Working.')
        await finish.promise
        reply.call('note', { text: 'handed' }, 'call_0')
        reply.finish()
      },
      says('taken over'),
    )
    const { id } = await spawnRoot(stage, 'bot', 'hand me over')
    await untilLiveText(stage, id, 'Working.')
    const worker = await stage.fleet.workerOf(id)
    await drain(worker)
    expect(await readJob(stage, id)).toMatchObject({ state: 'running', attempt: 1 })
    finish.resolve()
    expect(await endOf(stage, id)).toMatchObject({
      state: 'completed',
      result: 'taken over',
      attempt: 2,
      crashes: 0,
      steps: 2,
    })
    expect(await worker.exited).toBe(0)
    expect(raw.requests('hand me over')).toHaveLength(2)
    expect(await stage.notesOf('handed')).toEqual(['note handed'])
    expect(await eventsOf(stage, id)).toEqual(['spawned', 'handed-back', 'ended'])
    expect(await stage.runtime.database.worker.count({ where: { pid: worker.pid } })).toBe(0)
    expect(worker.output()).toBe('')
  })

  test('LOSS-11: a job that ends within the drain limit ends where it runs', async () => {
    const finish = Promise.withResolvers<void>()
    raw.answer('almost there', async (reply) => {
      reply.text('The end')
      await finish.promise
      reply.finish()
    })
    const { id } = await spawnRoot(stage, 'bot', 'almost there')
    await untilLiveText(stage, id, 'The end')
    const worker = await stage.fleet.workerOf(id)
    await drain(worker)
    finish.resolve()
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'The end', attempt: 1 })
    expect(await worker.exited).toBe(0)
  })

  test('LOSS-11: a step that outlasts the drain limit is left to another worker, and the exit code is 0', async () => {
    raw.answer('never ends', callsTool('note', { text: 'endless' }), staysSilent, says('at last'))
    const { id } = await spawnRoot(stage, 'bot', 'never ends')
    await waitUntil(() => raw.requests('never ends').length === 2)
    const worker = await stage.fleet.workerOf(id)
    worker.kill('SIGTERM')
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'at last', attempt: 2 })
    expect(await worker.exited).toBe(0)
    expect(raw.requests('never ends')).toHaveLength(3)
    expect(await stage.notesOf('endless')).toEqual(['note endless'])
  })

  test('a draining worker takes no new job, an idle one ends at once', async () => {
    raw.answer('hold on', callsTool('slow', { text: 'held' }), says('let go'))
    raw.answer('next please', says('here'))
    const { id } = await spawnRoot(stage, 'bot', 'hold on')
    await stage.untilNote('slow begins held')
    const holder = await stage.fleet.workerOf(id)
    const [idle] = stage.fleet.others(holder)
    await drain(holder)
    idle?.kill('SIGTERM')
    expect(await idle?.exited).toBe(0)
    const next = await spawnRoot(stage, 'bot', 'next please')
    await stage.release('held')
    expect(await holder.exited).toBe(0)
    // Nobody is there now; a new worker finds both.
    expect(await readJob(stage, next.id)).toMatchObject({ state: 'pending', attempt: 0 })
    await stage.fleet.replenish()
    expect(await endOf(stage, next.id)).toMatchObject({ state: 'completed', result: 'here' })
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'let go' })
    expect(await stage.notesOf('held')).toEqual(['slow begins held', 'slow ends held'])
  })

  test('STUCK-14: a second signal ends a worker with a hung tool at once', async () => {
    raw.answer('hang', callsTool('slow', { text: 'hung' }), says('unknown outcome'))
    const { id } = await spawnRoot(stage, 'bot', 'hang')
    await stage.untilNote('slow begins hung')
    const worker = await stage.fleet.workerOf(id)
    await drain(worker)
    const before = performance.now()
    worker.kill('SIGTERM')
    expect(await worker.exited).toBe(1)
    expect(performance.now() - before).toBeLessThan(500)
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'unknown outcome', attempt: 2 })
  })
})

test('COST-1: an abort of a tree that runs on two workers ends all of it within 2 s', async () => {
  raw.answer('split', (reply) => {
    reply.call('spawnAgent', spawnOf('bot', 'left'), 'call_left')
    reply.call('spawnAgent', spawnOf('bot', 'right', { mode: 'async' }), 'call_right')
    reply.finish()
  })
  for (const message of ['left', 'right']) raw.answer(message, ticking)
  const root = await spawnRoot(stage, 'bot', 'split')
  const children = await waitUntil(async () => {
    const found = await childrenOf(stage, root.id)
    return found.length === 2 && found
  })
  for (const { id } of children) await untilLiveText(stage, id, 'tick')
  const workers = await Promise.all(children.map(({ id }) => stage.fleet.workerOf(id)))
  expect(new Set(workers.map(({ pid }) => pid)).size).toBe(2)
  const before = performance.now()
  expect(await abort(stage, root.id)).toMatchObject({ state: 'aborted', abortedDescendants: 2 })
  for (const { id } of children)
    expect(await endOf(stage, id)).toMatchObject({ state: 'aborted', reason: 'aborted_by_parent', partial: true })
  expect(performance.now() - before).toBeLessThan(2_000)
  for (const message of ['left', 'right'])
    await waitUntil(() => raw.requests(message)[0]?.closedByPeerAt, { within: 2_000 })
})

test('STUCK-10: a tool that throws long after its job was aborted does not end the worker', async () => {
  raw.answer('be stubborn', callsTool('stubborn', { text: 'mule' }))
  raw.answer('anybody?', says('me'))
  const { id } = await spawnRoot(stage, 'bot', 'be stubborn')
  await stage.untilNote('stubborn begins mule')
  const worker = await stage.fleet.workerOf(id)
  expect(await abort(stage, id)).toMatchObject({ state: 'aborted' })
  const ended = await readJob(stage, id)
  await stage.release('mule')
  await stage.untilNote('stubborn throws mule')
  for (const other of stage.fleet.others(worker)) await other.stop()
  for (let at = 0; at < 5; at += 1) expect(await runRoot(stage, 'bot', 'anybody?')).toMatchObject({ result: 'me' })
  expect(await stage.fleet.workerOf(id)).toBe(worker)
  expect(worker.output()).toBe('')
  expect(await readJob(stage, id)).toEqual(ended)
})
