// SEC-4 in a running job: the right to run as somebody else is looked at again at each claim and before each tool call,
// for the job and for those above it; and a model has only the tools that its job was given.
import { childrenOf, endOf, eventsOf, readJob, runRoot, spawnOf, spawnRoot } from '@offshoot/testing/agents'
import { retryAgent } from '@offshoot/shared/operations/retry-agent'
import { callsTool, type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { tool } from 'ai'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { z } from 'zod'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const TOOLS = ['spawnAgent', 'checkAgent', 'abortAgent', 'listAgents', 'messageAgent', 'stamp', 'linger']

let raw: RawModel
let stage: WorkerStage
let stamped = 0
beforeAll(async () => {
  raw = await startRawModel()
  const inputSchema = z.object({})
  const stamp = tool({ description: 'Stamps.', inputSchema, execute: () => (stamped += 1) })
  const linger = tool({ description: 'Never ends.', inputSchema, execute: () => new Promise<string>(() => undefined) })
  stage = await openWorkerStage(raw.baseUrl, {
    environment: { WORKER_LANES: 'default,slow' },
    extensions: {
      tools: [
        { id: 'stamp', group: 'test', userSelect: true, tool: stamp },
        { id: 'linger', group: 'test', userSelect: true, tool: linger },
      ],
    },
  })
  await stage.putBot('bot', { toolNames: TOOLS })
  raw.answer('hello', says('hi'))
})
afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const delegate = { userId: 'alice', delegateUserId: 'bob' }
const database = () => stage.runtime.database
const letAliceBeBob = () =>
  database().userDelegate.upsert({ where: { userId_delegateUserId: delegate }, create: delegate, update: {} })
const withdraw = () => database().userDelegate.deleteMany({ where: delegate })
beforeEach(() => letAliceBeBob())

const WITHDRAWN = 'Not authorized to spawn sub-agent as user bob. The right to run as that user was taken back.'

const CALLS: [name: string, input: (jobId: string) => unknown][] = [
  ['spawnAgent', () => spawnOf('bot', 'hello', { mode: 'async' })],
  ['checkAgent', (jobId) => ({ jobId })],
  ['abortAgent', (jobId) => ({ jobId })],
  ['messageAgent', (jobId) => ({ jobId, message: 'hurry' })],
  ['listAgents', () => ({})],
  ['stamp', () => ({})],
]

describe('SEC-4: a right that is taken back while the job runs', () => {
  test.each(CALLS)('is noticed at its next call of %s, which does nothing', async (name, input) => {
    const message = `call ${name}`
    const held = Promise.withResolvers<undefined>()
    raw.answer(`wait for ${name}`, async (reply) => {
      await held.promise
      reply.text('waited')
      reply.finish()
    })
    let childId = ''
    raw.answer(
      message,
      callsTool('spawnAgent', spawnOf('bot', `wait for ${name}`, { mode: 'async' }), 'call_0'),
      async (reply, { body }) => {
        childId = JSON.parse((body['input'] as { output?: string }[]).at(-1)?.output ?? '{}').jobId
        await waitUntil(() => raw.requests(`wait for ${name}`).length > 0)
        await withdraw()
        reply.call(name, input(childId), 'call_1')
        reply.finish()
      },
      says('never said'),
    )
    const before = stamped
    const { id } = await spawnRoot(stage, 'bot', message, { runAsUserId: 'bob' })
    const job = await endOf(stage, id)
    expect(job).toMatchObject({ state: 'failed', reason: 'not_authorized', error: WITHDRAWN, ownerId: 'bob', steps: 2 })
    expect(raw.requests(message)).toHaveLength(2)
    expect(stamped).toBe(before)
    // Nothing was asked of the child but what follows from its parent's end.
    expect(await childrenOf(stage, id)).toHaveLength(1)
    held.resolve(undefined)
    expect(await endOf(stage, childId)).toMatchObject({ state: 'aborted', reason: 'aborted_by_parent' })
    expect(await eventsOf(stage, childId)).not.toContain('steered')
  })

  test('is no loss once it is back: a retry goes on with the call that was not made', async () => {
    raw.answer(
      'stamp it',
      async (reply) => {
        await withdraw()
        reply.call('stamp', {}, 'call_0')
        reply.finish()
      },
      says('stamped'),
    )
    const { id } = await runRoot(stage, 'bot', 'stamp it', { runAsUserId: 'bob' })
    expect(await readJob(stage, id)).toMatchObject({ state: 'failed', reason: 'not_authorized', steps: 1 })
    await letAliceBeBob()
    const before = stamped
    await retryAgent(stage.runtime, { userId: 'bob', admin: false }, { jobId: id }, 'bob')
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'stamped', steps: 2 })
    expect(stamped).toBe(before + 1)
    expect(raw.requests('stamp it')).toHaveLength(2)
  })

  test('ends what it has spawned as well, also deeper jobs that stay with the same user', async () => {
    raw.answer('top', callsTool('spawnAgent', spawnOf('bot', 'middle'), 'call_0'), says('never said'))
    raw.answer(
      'middle',
      async (reply) => {
        await withdraw()
        reply.call('stamp', {}, 'call_1')
        reply.finish()
      },
      says('never said'),
    )
    const before = stamped
    const root = await runRoot(stage, 'bot', 'top', { runAsUserId: 'bob' })
    const [middle] = await childrenOf(stage, root.id)
    expect(middle).toMatchObject({ grant: 'context', state: 'failed', reason: 'not_authorized', error: WITHDRAWN })
    expect(root).toMatchObject({ state: 'failed', reason: 'not_authorized', error: WITHDRAWN })
    expect(stamped).toBe(before)
  })

  test('is noticed by the claim of a child that had not begun', async () => {
    raw.answer('one', says('never said'))
    const calls = raw.requests('one').length
    const slow = stage.runtime.deliveries.lane('slow')
    await slow.pause()
    await stage.putBot('slow', { lane: 'slow' })
    raw.answer(
      'top of slow',
      callsTool('spawnAgent', spawnOf('slow', 'one', { mode: 'async' }), 'call_0'),
      says('gone'),
    )
    const root = await runRoot(stage, 'bot', 'top of slow', { runAsUserId: 'bob' })
    expect(root).toMatchObject({ state: 'completed' })
    const [child] = await childrenOf(stage, root.id)
    expect(await readJob(stage, child?.id ?? '')).toMatchObject({ state: 'pending', grant: 'context', ownerId: 'bob' })
    await withdraw()
    await slow.resume()
    expect(await endOf(stage, child?.id ?? '')).toMatchObject({ reason: 'not_authorized', error: WITHDRAWN })
    expect(raw.requests('one')).toHaveLength(calls)
  })

  test('of an admin who is none any more is noticed, too', async () => {
    await database().user.upsert({
      where: { id: 'alice' },
      create: { id: 'alice', admin: true },
      update: { admin: true },
    })
    const demote = () => database().user.update({ where: { id: 'alice' }, data: { admin: false } })
    raw.answer('as carol', async (reply) => {
      await demote()
      reply.call('stamp', {}, 'call_0')
      reply.finish()
    })
    const job = await runRoot(stage, 'bot', 'as carol', { runAsUserId: 'carol' })
    expect(job).toMatchObject({ grant: 'admin', state: 'failed', reason: 'not_authorized', ownerId: 'carol' })
  })

  test('lets the job of another right go on', async () => {
    raw.answer(
      'not as bob',
      async (reply) => {
        await withdraw()
        reply.call('stamp', {}, 'call_0')
        reply.finish()
      },
      says('stamped'),
    )
    expect(await runRoot(stage, 'bot', 'not as bob')).toMatchObject({ state: 'completed', result: 'stamped' })
  })
})

/** The last result of a tool that the model has read. */
function readBy(message: string): string {
  const input = raw.requests(message).at(-1)?.body['input'] as { output?: string }[] | undefined
  return input?.at(-1)?.output ?? ''
}

describe('SEC-4: what a running job may not have is refused by name', () => {
  test.each([
    [
      'a delegate whose right is gone',
      { runAsUserId: 'bob' },
      { reason: 'not_authorized', error: /^Not authorized to spawn sub-agent as user bob\./ },
      withdraw,
    ],
    [
      'a bot that was deleted',
      { bot: { botGroup: 'forge', botHandle: 'leaver' } },
      { reason: 'unknown_bot', error: /^Bot not found: forge\/leaver\.$/ },
      () => database().bot.deleteMany({ where: { handle: 'leaver' } }),
    ],
    [
      'a bot that is somebody else’s now',
      { bot: { botGroup: 'forge', botHandle: 'mover' } },
      { reason: 'unknown_bot', error: /^Bot not found: forge\/mover\.$/ },
      () => database().bot.updateMany({ where: { handle: 'mover' }, data: { ownerId: 'carol' } }),
    ],
  ])('%s', async (what, more, refusal, change) => {
    await stage.putBot('leaver')
    await stage.putBot('mover')
    raw.answer(
      what,
      async (reply) => {
        await change()
        reply.call('spawnAgent', { ...spawnOf('bot', 'hello'), ...more }, 'call_0')
        reply.finish()
      },
      says('I see.'),
    )
    const { id } = await runRoot(stage, 'bot', what)
    const { error: output } = JSON.parse(readBy(what))
    expect(output).toMatchObject({ state: 'failed', jobId: '', reason: refusal.reason })
    expect(output.error).toMatch(refusal.error)
    expect(await childrenOf(stage, id)).toEqual([])
    const events = await database().agentEvent.findMany({ where: { jobId: id, kind: 'refused' } })
    expect(events).toMatchObject([
      { actorId: 'alice', data: { what: 'spawn', step: 0, reason: refusal.reason, error: output.error } },
    ])
  })

  test.each(['stamp', 'spawnAgent'])('a call of %s, which its bot has and the job was not given', async (name) => {
    const message = `use ${name} all the same`
    const input = name === 'stamp' ? {} : spawnOf('bot', 'hello')
    raw.answer(message, callsTool(name, input, 'call_0'), says('I see.'))
    const before = stamped
    const job = await runRoot(stage, 'bot', message, { overrides: { toolFilter: ['checkAgent'] } })
    expect(job).toMatchObject({ state: 'completed', toolNames: ['checkAgent'] })
    expect(readBy(message)).toContain(name)
    expect(stamped).toBe(before)
    expect(await childrenOf(stage, job.id)).toEqual([])
  })
})

test('SEC-4: a child gets no more time than its parent has, which ends it in the middle of a tool call', async () => {
  raw.answer('brief', callsTool('spawnAgent', spawnOf('bot', 'long', { timeoutSeconds: 600 }), 'call_0'))
  raw.answer('long', callsTool('linger', {}, 'call_0'))
  const root = await spawnRoot(stage, 'bot', 'brief', { timeoutSeconds: 3 })
  const child = await waitUntil(async () => (await childrenOf(stage, root.id))[0])
  expect(child.deadlineAt.getTime()).toBeLessThanOrEqual((await readJob(stage, root.id)).deadlineAt.getTime())
  expect((await endOf(stage, child.id)).reason).toMatch(/timeout_total|aborted_by_parent/)
  expect(await endOf(stage, root.id)).toMatchObject({ state: 'failed', reason: 'timeout_total' })
})
