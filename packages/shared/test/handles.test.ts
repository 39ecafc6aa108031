// Handles: a job in the hands of a program, with a real worker process.
import { createOpenAI } from '@ai-sdk/openai'
import { readJob } from '@offshoot/testing/agents'
import { type MockModel, startMockModel } from '@offshoot/testing/mock-model'
import { startWorkerProcess, type TestProcess } from '@offshoot/testing/processes'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { isStepCount, readUIMessageStream, streamText, type UIMessage, type UIMessageChunk } from 'ai'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type AgentHandle, AgentTimeoutError } from '../src/agent-handle.ts'
import { createOffshoot, type Offshoot, type ProgramSpawn } from '../src/client.ts'
import { newId } from '../src/ids.ts'
import type { SpawnContext } from '../src/spawn-context.ts'

let stage: TestStage
let mock: MockModel
let worker: TestProcess
let offshoot: Offshoot
beforeAll(async () => {
  mock = await startMockModel()
  stage = await openTestStage({ environment: { OPENAI_BASE_URL: mock.baseUrl } })
  await stage.putBot('writer')
  await stage.runtime.database.user.create({ data: { id: 'admin', admin: true } })
  worker = await startWorkerProcess(stage.environment)
  offshoot = await createOffshoot({ environment: stage.environment, extensions: {} })
  mock.answer('Write slowly.', [{ text: `${'word '.repeat(60)}end`, pace: { ttft: 20, tps: 40 } }])
  mock.answer('Never end.', [{ text: 'word '.repeat(5_000), pace: { ttft: 20, tps: 20 } }])
  mock.answer('Be short.', ['A poem.'])
  mock.answer('Break.', [{ status: 401 }])
})
afterAll(async () => {
  await offshoot.close()
  await worker.stop()
  await stage.close()
  await mock.stop()
})

const alice: SpawnContext = {
  userId: 'alice',
  parentConvoId: 'chat-1',
  parentConvoOwnerId: 'alice',
  parentConvoSpaceId: null,
  spawnDepth: 0,
}
const writer = { botGroup: 'forge', botHandle: 'writer' }

function spawn(message: string, more: Partial<ProgramSpawn> = {}, context = alice): Promise<AgentHandle> {
  return offshoot.spawn(context, { bot: writer, message, ...more })
}

async function collect(stream: ReadableStream<UIMessageChunk> | undefined): Promise<UIMessageChunk[]> {
  const chunks: UIMessageChunk[] = []
  for await (const chunk of stream ?? []) chunks.push(chunk)
  return chunks
}

async function messageOf(stream: ReadableStream<UIMessageChunk>): Promise<UIMessage | undefined> {
  let last: UIMessage | undefined
  for await (const message of readUIMessageStream({ stream })) last = message
  return last
}

function textOf(message: UIMessage | undefined): string {
  const part = message?.parts.findLast((each) => each.type === 'text')
  return part?.type === 'text' ? part.text : ''
}

/** Lets the host's model make one call; answers the tools that it had, and what it read of the call. */
async function ask(prompt: string, call: { name: string; arguments: object }, context: SpawnContext) {
  mock.answer(prompt, [{ calls: [call] }, 'Done.'])
  const openai = createOpenAI({ baseURL: mock.baseUrl, apiKey: 'mock' })
  await offshoot.runWithSpawnContext(
    context,
    () =>
      streamText({
        model: openai('gpt-5'),
        prompt,
        tools: offshoot.tools({ extended: true }),
        stopWhen: isStepCount(3),
      }).text,
  )
  const last = mock.requests(prompt).at(-1)
  const { content } = last?.messages.find((message) => message.role === 'tool') ?? {}
  const read: unknown = JSON.parse(typeof content === 'string' ? content : 'null')
  return { offered: last?.tools?.map((tool) => tool.function.name), read }
}

test.each(['sync', 'async'] as const)(
  'a spawn in %s mode gives a handle at once, which learns the end',
  async (mode) => {
    const handle = await spawn('Write slowly.', { mode })
    expect(['pending', 'running']).toContain(await handle.status())
    expect(await handle.result()).toBeNull()
    const outcome = await handle.await()
    expect(outcome).toMatchObject({ mode: 'sync', jobId: handle.id, state: 'completed', steps: 1 })
    expect(outcome).toMatchObject({ messages: [{ role: 'user' }, { role: 'assistant', id: handle.id }] })
    expect(await handle.status()).toBe('completed')
    expect(await handle.result()).toMatch(/end$/)
    expect(await handle.error()).toBeNull()
    expect(await readJob(stage, handle.id)).toMatchObject({ mode })
  },
)

test('a job that fails is an outcome, not an exception', async () => {
  const handle = await spawn('Break.')
  expect(await handle.await()).toMatchObject({ state: 'failed', reason: 'model_auth' })
  expect(await handle.error()).toBe('The model provider refused our credentials. (status 401)')
})

test('await ends with AgentTimeoutError when its time is up; the job goes on, and is awaited again', async () => {
  const handle = await spawn('Write slowly.')
  const error: unknown = await handle.await(100).catch((reason: unknown) => reason)
  expect(error).toBeInstanceOf(AgentTimeoutError)
  expect(error).toMatchObject({ jobId: handle.id, message: expect.stringContaining('It goes on: await it again') })
  expect(await handle.status()).toBe('running')
  expect(await handle.await(30_000)).toMatchObject({ state: 'completed' })
})

test('a refused spawn is a handle that says why, and nothing was started', async () => {
  const before = await stage.runtime.database.agentJob.count()
  const handle = await spawn('Write.', { bot: { botGroup: 'forge', botHandle: 'nobody' } })
  expect(handle.id).toBe('')
  expect(await handle.status()).toBe('failed')
  expect(await handle.error()).toBe('Bot not found: forge/nobody.')
  expect(await handle.result()).toBeNull()
  expect(await handle.await()).toMatchObject({ state: 'failed', jobId: '', reason: 'unknown_bot' })
  expect(await handle.abort()).toMatchObject({ state: 'failed', abortedDescendants: 0 })
  expect(await handle.steer('hello')).toEqual({ accepted: false, reason: 'Bot not found: forge/nobody.' })
  const chunks = await collect(handle.stream())
  expect(chunks).toEqual([
    { type: 'error', errorText: 'Bot not found: forge/nobody.' },
    { type: 'finish', finishReason: 'error' },
  ])
  expect(await stage.runtime.database.agentJob.count()).toBe(before)
})

test('abort ends the job, and says so', async () => {
  const handle = await spawn('Never end.')
  await waitUntil(async () => (await handle.status()) === 'running')
  expect(await handle.abort('enough')).toMatchObject({ jobId: handle.id, state: 'aborted' })
  expect(await handle.await()).toMatchObject({ state: 'aborted', reason: 'aborted_by_user', error: 'enough' })
})

test('steer is read before the next step, and refused once the job has ended', async () => {
  mock.answer('Begin.', [{ text: `${'word '.repeat(20)}begun`, pace: { ttft: 20, tps: 40 } }])
  mock.answer('Now rhyme.', ['It rhymes.'])
  const handle = await spawn('Begin.')
  await waitUntil(() => mock.calls('Begin.') === 1)
  expect(await handle.steer('Now rhyme.')).toEqual({ accepted: true })
  expect(await handle.await()).toMatchObject({ state: 'completed', result: 'It rhymes.', steps: 2 })
  expect(await handle.steer('Once more.')).toEqual({
    accepted: false,
    reason: 'The job has ended; nobody reads messages to it any more.',
  })
  await expect(handle.steer('')).rejects.toThrow(/message/)
  expect(await stage.runtime.database.inboxItem.count({ where: { jobId: handle.id } })).toBe(1)
})

describe('stream', () => {
  test('shows the message as it grows, to its end; leaving it stops nothing', async () => {
    const handle = await spawn('Write slowly.')
    const left = handle.stream().getReader()
    await left.read()
    await left.cancel()
    expect(textOf(await messageOf(handle.stream()))).toBe(`${'word '.repeat(60)}end`)
    expect(await handle.status()).toBe('completed')
  })

  test('goes on after a number that a viewer has seen', async () => {
    const handle = await spawn('Be short.')
    await handle.await()
    const all = await collect(handle.stream())
    expect(await collect(handle.stream({ afterSeq: 3 }))).toEqual(all.slice(3))
  })

  test('STUCK-13: is made from what is stored when the live one is gone', async () => {
    const handle = await spawn('Be short.')
    await handle.await()
    const redis = new Redis(stage.config.REDIS_URL ?? '')
    const keys = await redis.keys(`*${handle.id}*`)
    expect(keys.length).toBeGreaterThan(0)
    await redis.del(...keys)
    await redis.quit()
    expect(textOf(await messageOf(handle.stream()))).toBe('A poem.')
  })
})

describe('attach', () => {
  test('gives the handle of a job of the user’s, running or ended', async () => {
    const { id } = await spawn('Write slowly.')
    const again = await offshoot.attach('alice', id)
    expect(await again?.await()).toMatchObject({ jobId: id, state: 'completed' })
    expect(await (await offshoot.attach('alice', id))?.result()).toMatch(/end$/)
    expect(await (await offshoot.attach('admin', id))?.status()).toBe('completed')
  })

  test('SEC-1: a foreign job is like an unknown one', async () => {
    const { id } = await spawn('Be short.')
    expect(await offshoot.attach('mallory', id)).toBeUndefined()
    expect(await offshoot.attach('mallory', newId())).toBeUndefined()
    expect(await offshoot.attach('alice', '')).toBeUndefined()
  })

  test('SEC-1: a right that was taken back ends a handle’s reach', async () => {
    await stage.runtime.database.user.create({ data: { id: 'boss', admin: true } })
    const { id } = await spawn('Never end.')
    const handle = await offshoot.attach('boss', id)
    expect(await handle?.status()).toMatch(/pending|running/)
    await stage.runtime.database.user.update({ where: { id: 'boss' }, data: { admin: false } })
    await expect(handle?.status()).rejects.toThrow(`Job ${id} not found.`)
    await expect(handle?.await(10)).rejects.toThrow(`Job ${id} not found.`)
    expect(await handle?.abort()).toMatchObject({ error: `Job ${id} not found.` })
    expect(await handle?.steer('Stop.')).toEqual({ accepted: false, reason: `Job ${id} not found.` })
    await expect(collect(handle?.stream())).rejects.toThrow(`Job ${id} not found.`)
    await (await offshoot.attach('alice', id))?.abort()
  })
})

describe('listLive', () => {
  test('finds live jobs by convo, tree and owner, newest first, with their tags', async () => {
    const kim = { ...alice, userId: 'kim', parentConvoOwnerId: 'kim', parentConvoId: 'chat-kim' }
    const tags = { ticket: '17' }
    const first = await spawn('Never end.', { tags }, kim)
    const second = await spawn('Never end.', {}, kim)
    const elsewhere = await spawn('Never end.', {}, { ...kim, parentConvoId: 'chat-other' })
    const ended = await spawn('Be short.', {}, kim)
    await ended.await()
    await stage.runtime.database.userDelegate.create({ data: { userId: 'kim', delegateUserId: 'lee' } })
    const asLee = await spawn('Never end.', { runAsUserId: 'lee' }, kim)
    const ids = async (userId: string, filter: Parameters<Offshoot['listLive']>[1]) =>
      (await offshoot.listLive(userId, filter)).agents.map(({ id }) => id)

    expect(await ids('kim', {})).toEqual([asLee.id, elsewhere.id, second.id, first.id])
    expect(await ids('kim', { parentConvoId: 'chat-kim' })).toEqual([asLee.id, second.id, first.id])
    expect(await ids('kim', { rootJobId: second.id })).toEqual([second.id])
    expect(await ids('kim', { ownerId: 'lee' })).toEqual([asLee.id])
    expect(await ids('lee', {})).toEqual([asLee.id])
    expect(await ids('mallory', { parentConvoId: 'chat-kim' })).toEqual([])
    expect(await ids('mallory', { ownerId: 'kim' })).toEqual([])

    const page = await offshoot.listLive('kim', { limit: 3 })
    expect(page.agents.map(({ id }) => id)).toEqual([asLee.id, elsewhere.id, second.id])
    const rest = await offshoot.listLive('kim', { limit: 3, cursor: page.nextCursor ?? '' })
    expect(rest.nextCursor).toBeUndefined()
    expect(rest.agents.map(({ id, job }) => [id, job.tags])).toEqual([[first.id, tags]])

    for (const agent of [...page.agents, ...rest.agents])
      expect(await agent.abort()).toMatchObject({ state: 'aborted' })
    expect(await ids('kim', {})).toEqual([])
  })
})

describe('listAgents and messageAgent, for a model of the host', () => {
  test('are there for those who ask for them, and act as the caller', async () => {
    expect(Object.keys(offshoot.tools())).toEqual(['spawnAgent', 'checkAgent', 'abortAgent'])
    const sam = { ...alice, userId: 'sam', parentConvoOwnerId: 'sam' }
    const handle = await spawn('Never end.', {}, sam)
    const ended = await spawn('Be short.', {}, sam)
    await ended.await()
    await waitUntil(async () => (await offshoot.check('sam', { jobId: handle.id })).progress?.lastText !== undefined)

    const { offered, read } = await ask('What runs?', { name: 'listAgents', arguments: {} }, sam)
    expect(offered).toEqual(['spawnAgent', 'checkAgent', 'abortAgent', 'listAgents', 'messageAgent'])
    const running = {
      jobId: handle.id,
      bot: 'forge/writer',
      state: 'running',
      step: 0,
      ageSeconds: expect.any(Number),
      lastText: expect.stringMatching(/word/),
    }
    expect(read).toEqual({ agents: [running] })
    const all = await ask('What was there?', { name: 'listAgents', arguments: { live: false, limit: 1 } }, sam)
    expect(all.read).toMatchObject({ agents: [{ jobId: ended.id, state: 'completed', step: 1, lastText: 'A poem.' }] })

    const message = { name: 'messageAgent', arguments: { jobId: handle.id, message: 'Come to an end.' } }
    expect((await ask('Meddle with it.', message, alice)).read).toEqual({
      accepted: false,
      reason: `Job ${handle.id} not found.`,
    })
    expect((await ask('Tell it.', message, sam)).read).toEqual({ accepted: true })
    expect(await stage.runtime.database.inboxItem.findMany({ where: { jobId: handle.id } })).toMatchObject([
      { kind: 'steer', actorId: 'sam' },
    ])
    // An admin's model is not shown everybody's.
    expect(
      (await ask('What is mine?', { name: 'listAgents', arguments: {} }, { ...alice, userId: 'admin' })).read,
    ).toEqual({ agents: [] })
    await handle.abort()
  })
})
