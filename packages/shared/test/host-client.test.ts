// A host: its own `streamText` with the sub-agent tools, a real worker process, and a model over HTTP.
import { createOpenAI } from '@ai-sdk/openai'
import { endOf, readJob } from '@offshoot/testing/agents'
import { seriesIn } from '@offshoot/testing/metrics'
import { type MockModel, startMockModel } from '@offshoot/testing/mock-model'
import { startWorkerProcess, type TestProcess } from '@offshoot/testing/processes'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { isStepCount, streamText, type TextStreamPart, type ToolSet } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOffshoot, type Offshoot } from '../src/client.ts'
import { ConfigError } from '../src/config.ts'
import type { SpawnOutput, SpawnProgress } from '../src/contracts/spawn.ts'
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
  mock.answer('Write slowly.', [{ text: `${'word '.repeat(80)}end`, pace: { ttft: 20, tps: 50 } }])
  mock.answer('Never end.', [{ text: 'word '.repeat(5_000), pace: { ttft: 20, tps: 20 } }])
  mock.answer('Be short.', ['A poem.'])
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
  parentConvoSpaceId: 'space-1',
  spawnDepth: 0,
}
const writer = { botGroup: 'forge', botHandle: 'writer' }
const spawnCall = (message: string, more: object = {}) => ({
  name: 'spawnAgent',
  arguments: { bot: writer, message, ...more },
})

type Part = TextStreamPart<ToolSet>
interface Turn {
  parts: Part[]
  /** When each part came (`performance.now()`). */
  times: number[]
  text: string
}

/** One turn of the host's own chat: the parent's model is called until it answers with a text. */
async function chat(
  prompt: string,
  options: { context?: SpawnContext; abortSignal?: AbortSignal; onPart?: (part: Part) => void } = {},
): Promise<Turn> {
  const openai = createOpenAI({ baseURL: mock.baseUrl, apiKey: 'mock' })
  const start = () =>
    streamText({
      model: openai('gpt-5'),
      prompt,
      tools: offshoot.tools(),
      stopWhen: isStepCount(5),
      onError: () => undefined,
      ...(options.abortSignal === undefined ? {} : { abortSignal: options.abortSignal }),
    })
  const result = options.context === undefined ? start() : offshoot.runWithSpawnContext(options.context, start)
  const turn: Turn = { parts: [], times: [], text: '' }
  for await (const part of result.stream) {
    turn.parts.push(part)
    turn.times.push(performance.now())
    if (part.type === 'text-delta') turn.text += part.text
    options.onPart?.(part)
  }
  return turn
}

/** What a spawn showed, one after the other, and what came of it. */
function spawnOutputs(turn: Turn): { shown: SpawnProgress[]; shownAt: number[]; outcome: SpawnOutput | undefined } {
  const shown: SpawnProgress[] = []
  const shownAt: number[] = []
  let outcome: SpawnOutput | undefined
  for (const [at, part] of turn.parts.entries()) {
    if (part.type !== 'tool-result' || part.toolName !== 'spawnAgent') continue
    const output = part.output as SpawnOutput | SpawnProgress
    if (part.preliminary !== true) outcome = output as SpawnOutput
    else if ('message' in output) {
      shown.push(output)
      shownAt.push(turn.times[at] ?? 0)
    }
  }
  return { shown, shownAt, outcome }
}

function shownText({ message }: SpawnProgress): string {
  const part = message?.parts.findLast((each) => each.type === 'text')
  return part?.type === 'text' ? part.text : ''
}

/** What the parent's model was told of its n-th tool call in its last request. */
function toolResultSeenByModel(prompt: string, at = 0): unknown {
  const results = mock
    .requests(prompt)
    .at(-1)
    ?.messages.filter((message) => message.role === 'tool')
  const content = results?.[at]?.content
  return JSON.parse(typeof content === 'string' ? content : 'null')
}

test("a sync spawn shows the sub-agent's message as it grows, at most 4 times a second, and ends with the output", async () => {
  mock.answer('Ask the writer.', [{ calls: [spawnCall('Write slowly.')] }, 'The writer has written.'])
  const turn = await chat('Ask the writer.', { context: alice })
  expect(turn.text).toBe('The writer has written.')
  const { shown, shownAt, outcome } = spawnOutputs(turn)
  expect(shown.length).toBeGreaterThan(2)
  for (const [at, progress] of shown.entries()) {
    expect(progress).toMatchObject({ mode: 'sync', state: 'running', message: { role: 'assistant' } })
    expect(shownText(progress).startsWith(shownText(shown[at - 1] ?? progress))).toBe(true)
    expect((shownAt[at] ?? 0) - (shownAt[at - 1] ?? -Infinity)).toBeGreaterThan(200)
  }
  expect(shownText(shown.at(-1) as SpawnProgress).length).toBeGreaterThan(shownText(shown[0] as SpawnProgress).length)
  const text = `${'word '.repeat(80)}end`
  expect(outcome).toMatchObject({
    mode: 'sync',
    jobId: shown[0]?.jobId,
    state: 'completed',
    reason: 'completed',
    result: text,
    steps: 1,
    messages: [
      { role: 'user', parts: [{ type: 'text', text: 'Write slowly.' }] },
      {
        role: 'assistant',
        id: shown[0]?.jobId,
        parts: expect.arrayContaining([expect.objectContaining({ type: 'text', text })]),
      },
    ],
  })
  const job = await readJob(stage, outcome?.jobId ?? '')
  expect(job).toMatchObject({ ownerId: 'alice', parentConvoId: 'chat-1', depth: 1, mode: 'sync', priority: 10 })
})

test("the parent's model sees only state, reason, result and jobId", async () => {
  mock.answer('Ask briefly.', [{ calls: [spawnCall('Be short.')] }, 'Done.'])
  const { outcome } = spawnOutputs(await chat('Ask briefly.', { context: alice }))
  expect(toolResultSeenByModel('Ask briefly.')).toEqual({
    state: 'completed',
    reason: 'completed',
    result: 'A poem.',
    jobId: outcome?.jobId,
  })
})

test("STATE-9: of a sub-agent that failed the parent's model sees an error, with its reason and a scrubbed sentence", async () => {
  mock.answer('Break.', [{ status: 401 }])
  mock.answer('Ask the broken one.', [{ calls: [spawnCall('Break.')] }, 'It failed.'])
  const turn = await chat('Ask the broken one.', { context: alice })
  const { outcome } = spawnOutputs(turn)
  expect(outcome).toMatchObject({ state: 'failed', reason: 'model_auth', result: null })
  // The SDK marks an error result in this way.
  expect(toolResultSeenByModel('Ask the broken one.')).toEqual({
    error: {
      state: 'failed',
      reason: 'model_auth',
      result: null,
      jobId: outcome?.jobId,
      error: 'The model provider refused our credentials. (status 401)',
    },
  })
  expect(turn.text).toBe('It failed.')
})

test('STUCK-12: a refused spawn is the result of its call, among others that are made', async () => {
  const calls = [spawnCall('Be short.'), spawnCall('Be short.', { bot: { botGroup: 'forge', botHandle: 'nobody' } })]
  mock.answer('Ask two.', [{ calls }, 'One answered.'])
  const turn = await chat('Ask two.', { context: alice })
  expect(turn.parts.some((part) => part.type === 'tool-error')).toBe(false)
  const seen = [toolResultSeenByModel('Ask two.', 0), toolResultSeenByModel('Ask two.', 1)]
  expect(seen).toMatchObject([
    { state: 'completed', result: 'A poem.' },
    {
      error: { state: 'failed', reason: 'unknown_bot', jobId: '', result: null, error: 'Bot not found: forge/nobody.' },
    },
  ])
})

test('a model that fills empty optional fields spawns all the same', async () => {
  const empty = { runAsUserId: '', completionEvent: {}, overrides: { modelOverride: '', toolFilter: [] } }
  mock.answer('Ask with blanks.', [
    { calls: [spawnCall('Be short.', { ...empty, bot: { botId: '', ...writer } })] },
    'Done.',
  ])
  await chat('Ask with blanks.', { context: alice })
  expect(toolResultSeenByModel('Ask with blanks.')).toMatchObject({ state: 'completed', result: 'A poem.' })
})

test("aborting the host's signal aborts the sync sub-agent, which keeps what it had said", async () => {
  mock.answer('Ask for too much.', [{ calls: [spawnCall('Never end.')] }, 'Never said.'])
  const controller = new AbortController()
  let jobId = ''
  await chat('Ask for too much.', {
    context: alice,
    abortSignal: controller.signal,
    onPart(part) {
      if (part.type !== 'tool-result' || part.preliminary !== true) return
      const progress = part.output as SpawnProgress
      jobId = progress.jobId
      if (shownText(progress) !== '') controller.abort()
    },
  })
  const job = await endOf(stage, jobId, 5_000)
  expect(job).toMatchObject({ state: 'aborted', reason: 'aborted_by_parent', abortRequestedBy: 'alice', partial: true })
  expect(job.result).toMatch(/^word/)
  expect(mock.calls('Ask for too much.')).toBe(1)
})

test('an async spawn goes on by itself; checkAgent looks at it, abortAgent ends it, each through the tools', async () => {
  mock.answer('Start it.', [{ calls: [spawnCall('Never end.', { mode: 'async' })] }, 'Started.'])
  await chat('Start it.', { context: alice })
  const started = toolResultSeenByModel('Start it.')
  expect(started).toMatchObject({ state: 'pending', note: expect.stringMatching(/do not poll/) })
  const jobId = Object(started).jobId
  const growing = await waitUntil(async () => {
    const { progress } = await offshoot.check('alice', { jobId })
    return progress?.lastText !== undefined && progress
  })
  expect(growing).toMatchObject({ step: 0, maxSteps: 25 })

  mock.answer('Look at it.', [{ calls: [{ name: 'checkAgent', arguments: { jobId } }] }, 'It works.'])
  await chat('Look at it.', { context: alice })
  expect(toolResultSeenByModel('Look at it.')).toEqual({
    state: 'running',
    progress: { step: 0, maxSteps: 25, lastText: expect.stringMatching(/^word/) },
    result: null,
    error: null,
  })

  mock.answer('Stop it.', [{ calls: [{ name: 'abortAgent', arguments: { jobId, reason: 'enough' } }] }, 'Stopped.'])
  await chat('Stop it.', { context: alice })
  expect(toolResultSeenByModel('Stop it.')).toMatchObject({
    jobId,
    state: 'aborted',
    abortedDescendants: 0,
    partialResult: expect.stringMatching(/^word/),
  })
  expect(await readJob(stage, jobId)).toMatchObject({ state: 'aborted', reason: 'aborted_by_user', error: 'enough' })
})

test('SEC-1: through the tools nobody sees or ends a job of another user', async () => {
  const { id: jobId } = await offshoot.spawn(alice, { bot: writer, message: 'Never end.', mode: 'async' })
  const notFound = { state: 'failed', error: `Job ${jobId} not found.` }
  const calls = [
    { name: 'checkAgent', arguments: { jobId } },
    { name: 'abortAgent', arguments: { jobId } },
  ]
  mock.answer('Meddle.', [{ calls }, 'I could not.'])
  await chat('Meddle.', { context: { ...alice, userId: 'mallory' } })
  expect(toolResultSeenByModel('Meddle.', 0)).toEqual({ ...notFound, progress: null, result: null })
  expect(toolResultSeenByModel('Meddle.', 1)).toEqual({ ...notFound, jobId, abortedDescendants: 0 })
  expect(await offshoot.check('mallory', { jobId })).toEqual({ ...notFound, jobId })
  expect((await offshoot.check('admin', { jobId })).error).toBeUndefined()
  expect(await offshoot.abort('alice', { jobId })).toMatchObject({ state: 'aborted' })
})

test('COST-6: checkAgent waits on the server and answers within 0.5 s of the end', async () => {
  const { id: jobId } = await offshoot.spawn(alice, { bot: writer, message: 'Write slowly.', mode: 'async' })
  const answer = await offshoot.check('alice', { jobId, waitSeconds: 60 })
  const { finishedAt } = await readJob(stage, jobId)
  expect(Date.now() - (finishedAt?.getTime() ?? 0)).toBeLessThan(500)
  expect(answer).toMatchObject({ state: 'completed', steps: 1, result: expect.stringMatching(/end$/) })
  expect(await offshoot.check('alice', { jobId, includePartial: true })).toEqual(answer)
})

test('COST-6: a waiting check answers with the state as it stands when its time is up', async () => {
  const { id: jobId } = await offshoot.spawn(alice, { bot: writer, message: 'Never end.', mode: 'async' })
  const before = performance.now()
  expect(await offshoot.check('alice', { jobId, waitSeconds: 1 })).toMatchObject({ jobId, state: 'running' })
  expect(performance.now() - before).toBeGreaterThan(950)
  expect(performance.now() - before).toBeLessThan(3_000)
  const partial = await offshoot.check('alice', { jobId, includePartial: true })
  expect(partial).toMatchObject({ partial: true, messages: [{ role: 'user' }, { role: 'assistant' }] })
  await offshoot.abort('alice', { jobId })
})

test('the progress of a long answer holds its latest 20,000 characters', async () => {
  mock.answer('Write a book.', [{ text: `${'x'.repeat(20_000)}${'y'.repeat(1_500)}`, pace: { ttft: 5, tps: 4_000 } }])
  mock.answer('Ask for a book.', [{ calls: [spawnCall('Write a book.')] }, 'A book.'])
  const { shown, outcome } = spawnOutputs(await chat('Ask for a book.', { context: alice }))
  const longest = Math.max(...shown.map((progress) => shownText(progress).length))
  expect(longest).toBe(20_000)
  expect('result' in (outcome ?? {}) && Object(outcome).result).toHaveLength(21_500)
})

test('outside a spawn context the call is an error that says what to do', async () => {
  mock.answer('Ask without context.', [{ calls: [spawnCall('Be short.')] }, 'It did not work.'])
  const turn = await chat('Ask without context.')
  const error = turn.parts.find((part) => part.type === 'tool-error')
  expect(String(error?.type === 'tool-error' && error.error)).toMatch(/There is no spawn context\. Wrap the call/)
  expect(turn.text).toBe('It did not work.')
})

test('a program spawns, waits and gives up with a signal of its own', async () => {
  expect(await offshoot.run(alice, { bot: writer, message: 'Be short.' })).toMatchObject({
    mode: 'sync',
    state: 'completed',
    result: 'A poem.',
  })
  const outcome = await offshoot.run(
    alice,
    { bot: writer, message: 'Never end.' },
    { signal: AbortSignal.timeout(500) },
  )
  expect(outcome).toMatchObject({ mode: 'sync', state: 'aborted', reason: 'aborted_by_parent' })
  const early = await offshoot.run(alice, { bot: writer, message: 'Never end.' }, { signal: AbortSignal.abort() })
  expect(early).toMatchObject({ mode: 'sync', state: 'aborted' })
})

test("a spawn in the name of a job that is not the caller's is an error", async () => {
  const { id: jobId } = await offshoot.spawn(alice, { bot: writer, message: 'Be short.', mode: 'async' })
  const context = { ...alice, userId: 'mallory', parentJobId: jobId }
  await expect(offshoot.spawn(context, { bot: writer, message: 'Be short.' })).rejects.toThrow(
    `The spawn context names the parent job ${jobId}, which is not a live job of user mallory.`,
  )
})

test('a host whose settings are wrong gets one error that names them', async () => {
  const environment = { ...stage.environment, DATABASE_URL: '', REDIS_URL: 'nowhere', API_PORT: 'x' }
  const error: unknown = await createOffshoot({ environment }).catch((reason: unknown) => reason)
  expect(error).toBeInstanceOf(ConfigError)
  expect(String(error)).toMatch(/DATABASE_URL is missing[\s\S]*REDIS_URL must be[\s\S]*API_PORT/)
})

test('a host tells Prometheus what it has counted', async () => {
  const accepted = async () => seriesIn(await offshoot.metrics(), 'offshoot_spawns_total', { mode: 'async' }) ?? 0
  const before = await accepted()
  await offshoot.spawn(alice, { bot: writer, message: 'Be short.', mode: 'async' })
  expect(await accepted()).toBe(before + 1)
  await offshoot.spawn(alice, { bot: { botId: 'none' }, message: 'Be short.' })
  const refused = { reason: 'unknown_bot' }
  expect(seriesIn(await offshoot.metrics(), 'offshoot_spawn_refusals_total', refused)).toBeGreaterThan(0)
})
