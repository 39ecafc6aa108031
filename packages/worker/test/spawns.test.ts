import { afterAll, beforeAll, expect, test } from 'vitest'
import { answerOf, childrenOf, endOf, runRoot, spawnOf } from '@offshoot/testing/agents'
import { type MockModel, startMockModel } from '@offshoot/testing/mock-model'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let mock: MockModel
let stage: WorkerStage

beforeAll(async () => {
  mock = await startMockModel()
  stage = await openWorkerStage(mock.baseUrl)
  await stage.putBot('parent')
  await stage.putBot('child', { toolNames: [] })
})

afterAll(async () => {
  await stage.close()
  await mock.stop()
})

/** What the parent's model reads as the result of its calls, by call id; the provider wraps an error result as `{ error }`. */
function resultsFor(message: string): Record<string, unknown> {
  const request = mock.requests(message).at(-1)
  const results = request?.messages.filter((each) => each.role === 'tool') ?? []
  return Object.fromEntries(
    results.map(({ tool_call_id, content }) => [tool_call_id, JSON.parse(typeof content === 'string' ? content : '')]),
  )
}

test('a sync spawn brings the child’s answer as the result of the call, and nothing else of the child', async () => {
  mock.answer('ask one', [
    { calls: [{ id: 'one', name: 'spawnAgent', arguments: spawnOf('child', 'what is it?') }] },
    'The child says 42.',
  ])
  mock.answer('what is it?', [{ text: '42', usage: { input: 7, output: 3 } }])
  const parent = await runRoot(stage, 'parent', 'ask one')
  const [child] = await childrenOf(stage, parent.id)
  expect(parent).toMatchObject({ state: 'completed', reason: 'completed', result: 'The child says 42.', steps: 2 })
  expect(child).toMatchObject({ state: 'completed', mode: 'sync', depth: 2, result: '42', totalTokens: 10n })
  expect(child?.rootJobId).toBe(parent.id)
  expect(resultsFor('ask one')).toEqual({
    one: { state: 'completed', reason: 'completed', result: '42', jobId: child?.id },
  })
})

test('an async spawn brings the id of its job at once; the parent neither waits nor ends with it', async () => {
  mock.answer('start one', [
    { calls: [{ id: 'go', name: 'spawnAgent', arguments: spawnOf('child', 'work', { mode: 'async' }) }] },
    'started',
  ])
  mock.answer('work', [{ text: 'worked', pace: { ttft: 300, tps: 100 } }])
  const parent = await runRoot(stage, 'parent', 'start one')
  const [child] = await childrenOf(stage, parent.id)
  expect(parent).toMatchObject({ state: 'completed', attempt: 1, result: 'started' })
  expect(resultsFor('start one')).toMatchObject({ go: { jobId: child?.id, state: 'pending' } })
  expect(JSON.stringify(resultsFor('start one'))).toContain('do not poll')
  expect(await endOf(stage, child?.id ?? '')).toMatchObject({ state: 'completed', mode: 'async', result: 'worked' })
})

test('STUCK-12: sync, async and refused spawns of one step each get their own result', async () => {
  mock.answer('ask many', [
    {
      calls: [
        { id: 'sync', name: 'spawnAgent', arguments: spawnOf('child', 'many: sync') },
        { id: 'nobody', name: 'spawnAgent', arguments: spawnOf('nobody', 'many: nobody') },
        { id: 'async', name: 'spawnAgent', arguments: spawnOf('child', 'many: async', { mode: 'async' }) },
        { id: 'event', name: 'spawnAgent', arguments: spawnOf('child', 'x', { completionEvent: { name: 'done' } }) },
        { id: 'invalid', name: 'spawnAgent', arguments: { bot: { botGroup: 'forge' }, message: 'x' } },
        { id: 'check', name: 'checkAgent', arguments: { jobId: 'unknown' } },
        { id: 'also sync', name: 'spawnAgent', arguments: spawnOf('child', 'many: sync') },
      ],
    },
    'All seven are answered.',
  ])
  mock.answer('many: sync', ['yes'])
  mock.answer('many: async', ['later'])
  const parent = await runRoot(stage, 'parent', 'ask many')
  const children = await childrenOf(stage, parent.id)
  expect(parent).toMatchObject({ state: 'completed', result: 'All seven are answered.', steps: 2 })
  const [alsoSync, inBackground, sync] = children
  expect(children.map(({ parentToolCallId }) => parentToolCallId)).toEqual(['also sync', 'async', 'sync'])
  const results = resultsFor('ask many')
  expect(results).toMatchObject({
    sync: { state: 'completed', result: 'yes', jobId: sync?.id },
    'also sync': { state: 'completed', result: 'yes', jobId: alsoSync?.id },
    async: { jobId: inBackground?.id },
    nobody: { error: { state: 'failed', reason: 'unknown_bot', error: 'Bot not found: forge/nobody.', jobId: '' } },
    event: {
      error: {
        state: 'failed',
        reason: 'invalid_request',
        jobId: '',
        error: expect.stringMatching(/^completionEvent is only valid in async mode\./),
      },
    },
    check: { state: 'failed', error: 'Job unknown not found.' },
  })
})

test('STUCK-12: the contract’s refusals come as results, and leave no job behind', async () => {
  const refusals: [id: string, more: Record<string, unknown>, error: RegExp][] = [
    [
      'colon',
      { overrides: { modelOverride: 'gpt' } },
      /^Invalid modelOverride format: "gpt". Expected "integration:modelName"\.$/,
    ],
    ['provider', { overrides: { modelOverride: 'nope:gpt' } }, /^Unknown model provider: nope\. Known: openai\.$/],
    [
      'tool',
      { overrides: { toolFilter: ['constructor'] } },
      /^Unknown tools: constructor\. Known: spawnAgent, checkAgent, abortAgent\.$/,
    ],
    ['user', { runAsUserId: 'bob' }, /^Not authorized to spawn sub-agent as user bob\. /],
    ['empty', { message: '' }, /^message must be 1 to 100000 characters long/],
  ]
  mock.answer('ask wrongly', [
    {
      calls: refusals.map(([id, more]) => ({ id, name: 'spawnAgent', arguments: spawnOf('parent', 'x', more) })),
    },
    'I was refused.',
  ])
  const before = await stage.runtime.database.convo.count()
  const parent = await runRoot(stage, 'parent', 'ask wrongly')
  const results = resultsFor('ask wrongly')
  for (const [id, , error] of refusals)
    expect(results[id]).toMatchObject({ error: { state: 'failed', jobId: '', error: expect.stringMatching(error) } })
  expect(await childrenOf(stage, parent.id)).toEqual([])
  expect(await stage.runtime.database.convo.count()).toBe(before + 1)
})

test('STATE-9: a child that failed is an error result with its true state and reason', async () => {
  mock.answer('ask a broken one', [
    { calls: [{ id: 'one', name: 'spawnAgent', arguments: spawnOf('child', 'break') }] },
    'It broke.',
  ])
  mock.answer('break', [{ status: 401 }])
  const parent = await runRoot(stage, 'parent', 'ask a broken one')
  const [child] = await childrenOf(stage, parent.id)
  expect(parent).toMatchObject({ state: 'completed', result: 'It broke.' })
  expect(child).toMatchObject({ state: 'failed', reason: 'model_auth' })
  expect(resultsFor('ask a broken one')).toMatchObject({
    one: { error: { state: 'failed', reason: 'model_auth', jobId: child?.id, result: null } },
  })
  expect((await answerOf(stage, parent.id)).find((part) => part.type === 'tool-spawnAgent')).toMatchObject({
    state: 'output-available',
    output: { state: 'failed', reason: 'model_auth' },
  })
})

test('empty optional fields of a spawn count as absent', async () => {
  const more = { runAsUserId: '', overrides: { toolFilter: [], systemPromptAppend: '' }, completionEvent: {} }
  mock.answer('ask with blanks', [
    { calls: [{ id: 'one', name: 'spawnAgent', arguments: spawnOf('child', 'blank', more) }] },
    'fine',
  ])
  mock.answer('blank', ['answered'])
  const parent = await runRoot(stage, 'parent', 'ask with blanks')
  expect(await childrenOf(stage, parent.id)).toMatchObject([{ state: 'completed', ownerId: 'alice', overrides: {} }])
})
