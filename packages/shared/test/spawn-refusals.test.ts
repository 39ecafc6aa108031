// A spawn that is refused: an output with the contract's words, and nothing left behind.
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import {
  claimNext,
  claimOf,
  hostOrigin,
  jobOrigin,
  spawnChildren,
  spawnInput,
  spawnJob,
} from '@offshoot/testing/jobs-without-worker'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Reason } from '../src/contracts/reason.ts'
import type { ProgramSpawnInput } from '../src/contracts/spawn.ts'
import type { ClaimedJob } from '../src/db/agent-jobs.ts'
import { answerSpawnCalls } from '../src/operations/answer-spawn-calls.ts'
import type { SpawnOrigin } from '../src/operations/prepare-spawn.ts'
import { refusedOutput, spawnAgent } from '../src/operations/spawn-agent.ts'

const CAPS = { MAX_CHILDREN_PER_JOB: '3', MAX_JOBS_PER_TREE: '5', MAX_ACTIVE_JOBS_PER_USER: '6' }

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({
    environment: CAPS,
    extensions: {
      providers: {
        acme: () => {
          throw new Error('no model is called here')
        },
      },
    },
  })
  await stage.putBot('writer')
  await stage.putBot('elsewhere', { integration: 'nowhere' })
})
afterAll(() => stage.close())

/** How many rows there are of each kind that a spawn makes, and how many deliveries. */
async function footprint() {
  const { database, deliveries } = stage.runtime
  const [jobs, trees, convos, messages, outbox, queued] = await Promise.all([
    database.agentJob.count(),
    database.agentTree.count(),
    database.convo.count(),
    database.aiMessage.count(),
    database.outbox.count(),
    deliveries.lane('default').getJobCounts(),
  ])
  return { jobs, trees, convos, messages, outbox, queued }
}

async function settled(): Promise<void> {
  const { database } = stage.runtime
  await expect.poll(() => database.outbox.count({ where: { doneAt: null } })).toBe(0)
}

interface Case {
  what: string
  input: Partial<ProgramSpawnInput>
  origin?: Partial<SpawnOrigin>
  reason: Reason
  words: string
}

const CASES: Case[] = [
  ...[
    { input: { layers: ['notes', 'plans'] }, words: 'Unknown layers: notes, plans. Known: none.' },
    { input: { wakeIdleParent: true }, words: 'wakeIdleParent is only valid with notifyParent' },
  ].map((each) => ({ what: each.words, reason: 'invalid_request' as const, ...each })),
  {
    what: 'SEC-4: a spawn from depth 3',
    input: {},
    origin: { depth: 3 },
    reason: 'depth_limit',
    words: 'Maximum spawn depth (3) exceeded.',
  },
  {
    what: 'a user who is no delegate',
    input: { runAsUserId: 'bob' },
    reason: 'not_authorized',
    words: 'Not authorized to spawn sub-agent as user bob.',
  },
  {
    what: 'a completionEvent in sync mode',
    input: { mode: 'sync', completionEvent: { name: 'done' } },
    reason: 'invalid_request',
    words: 'completionEvent is only valid in async mode.',
  },
  {
    what: 'notifyParent in sync mode',
    input: { mode: 'sync', notifyParent: true },
    reason: 'invalid_request',
    words: 'notifyParent is only valid in async mode.',
  },
  {
    what: 'a modelOverride without a colon',
    input: { overrides: { modelOverride: 'gpt-5' } },
    reason: 'invalid_request',
    words: 'Invalid modelOverride format: "gpt-5". Expected "integration:modelName".',
  },
  {
    what: 'a modelOverride that begins with a colon',
    input: { overrides: { modelOverride: ':gpt-5' } },
    reason: 'invalid_request',
    words: 'Invalid modelOverride format: ":gpt-5". Expected "integration:modelName".',
  },
  {
    what: 'a modelOverride that ends with a colon',
    input: { overrides: { modelOverride: 'openai:' } },
    reason: 'invalid_request',
    words: 'Invalid modelOverride format: "openai:". Expected "integration:modelName".',
  },
  {
    what: 'an unknown provider',
    input: { overrides: { modelOverride: 'skynet:t:800' } },
    reason: 'invalid_request',
    words: 'Unknown model provider: skynet. Known: openai, acme.',
  },
  {
    what: 'a bot whose provider is not configured',
    input: { bot: { botGroup: 'forge', botHandle: 'elsewhere' } },
    reason: 'invalid_request',
    words: 'Unknown model provider: nowhere. Known: openai, acme.',
  },
  {
    what: 'an unknown bot by address',
    input: { bot: { botGroup: 'forge', botHandle: 'nobody' } },
    reason: 'unknown_bot',
    words: 'Bot not found: forge/nobody.',
  },
  {
    what: 'an unknown bot by id',
    input: { bot: { botId: 'b-1' } },
    reason: 'unknown_bot',
    words: 'Bot not found: b-1.',
  },
  {
    what: 'an unknown tool',
    input: { overrides: { toolFilter: ['checkAgent', 'rm', 'mv'] } },
    reason: 'unknown_tool',
    words: 'Unknown tools: rm, mv. Known: spawnAgent, checkAgent, abortAgent.',
  },
  {
    what: 'an empty message',
    input: { message: '' },
    reason: 'invalid_request',
    words: 'message must be 1 to 100000 characters long; this one has 0.',
  },
  {
    what: 'a message that is too long',
    input: { message: 'x'.repeat(100_001) },
    reason: 'invalid_request',
    words: 'message must be 1 to 100000 characters long; this one has 100001.',
  },
  {
    what: 'the runner inline on the queue',
    input: { runner: 'inline' },
    reason: 'invalid_request',
    words: 'The runner "inline" is not available here.',
  },
  {
    what: 'SEC-9: a bot named like a member of every object',
    input: { bot: { botGroup: 'constructor', botHandle: '__proto__' } },
    reason: 'unknown_bot',
    words: 'Bot not found: constructor/__proto__.',
  },
  {
    what: 'SEC-9: tools named like members of every object',
    input: { overrides: { toolFilter: ['constructor', '__proto__', 'toString'] } },
    reason: 'unknown_tool',
    words: 'Unknown tools: constructor, __proto__, toString. Known: spawnAgent, checkAgent, abortAgent.',
  },
  {
    what: 'SEC-9: a provider named like a member of every object',
    input: { overrides: { modelOverride: 'constructor:x' } },
    reason: 'invalid_request',
    words: 'Unknown model provider: constructor. Known: openai, acme.',
  },
  {
    what: 'LOSS-7: a bot with U+0000 in its name',
    input: { bot: { botGroup: 'forge', botHandle: 'wri\u0000ter' } },
    reason: 'unknown_bot',
    words: 'Bot not found: forge/wri␀ter.',
  },
  {
    what: 'LOSS-7: a user with U+0000 in its id',
    input: { runAsUserId: 'bo\u0000b' },
    reason: 'not_authorized',
    words: 'Not authorized to spawn sub-agent as user bo␀b.',
  },
]

test.each(CASES)('refused with nothing left behind: $what', async ({ input, origin, reason, words }) => {
  await settled()
  const before = await footprint()
  const asked = spawnInput(input)
  const answer = await spawnAgent(stage.runtime, hostOrigin('alice', origin), asked)
  expect(answer).toMatchObject({ kind: 'refused', refusal: { reason } })
  const output = answer.kind === 'refused' ? refusedOutput(asked, answer.refusal) : undefined
  expect(output).toEqual({
    mode: asked.mode,
    jobId: '',
    convoId: '',
    state: 'failed',
    reason,
    error: expect.stringMatching(/\.$/),
  })
  expect(output?.error.slice(0, words.length)).toBe(words)
  expect(await footprint()).toEqual(before)
})

test('a message of 100,000 characters is accepted, and an emoji counts as one', async () => {
  const job = await spawnJob(stage.runtime, 'emoji', { message: '😀'.repeat(100_000) })
  expect(job.inputMessage).toHaveLength(200_000)
})

test('a model name may hold colons', async () => {
  const job = await spawnJob(stage.runtime, 'colons', { overrides: { modelOverride: 'acme:org:model:v1' } })
  expect(job.overrides).toEqual({ modelOverride: 'acme:org:model:v1' })
})

test("SEC-4: a child's tools are a subset of its parent's, and what lies outside is refused by name", async () => {
  const parent = await claimNext(
    stage.runtime,
    (await spawnJob(stage.runtime, 'subset', { overrides: { toolFilter: ['spawnAgent', 'checkAgent'] } })).id,
  )
  expect(parent.toolNames).toEqual(['spawnAgent', 'checkAgent'])
  const { answer, children } = await spawnChildren(stage.runtime, parent, [
    {},
    { overrides: { toolFilter: ['checkAgent', 'abortAgent'] } },
  ])
  expect(children.map((child) => child.toolNames)).toEqual([['spawnAgent', 'checkAgent']])
  expect(answer.kind === 'answered' && answer.outputs.get('call_1')).toMatchObject({
    state: 'failed',
    reason: 'unknown_tool',
    error: 'Unknown tools: abortAgent. Known: spawnAgent, checkAgent.',
  })
})

test('SEC-4: a child ends no later than its parent', async () => {
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'deadline', { timeoutSeconds: 60 })).id)
  const { children } = await spawnChildren(stage.runtime, parent, [{ timeoutSeconds: 3_600 }, { timeoutSeconds: 5 }])
  expect(children.map((child) => child.timeoutMs)).toEqual([60_000, 5_000])
  // Not by a millisecond, however long the spawn has waited for its locks.
  expect(children[0]?.deadlineAt).toEqual(parent.deadlineAt)
})

/** Spawns one more child of a running job and says what came out, with what it left behind. */
async function refusedChild(parent: ClaimedJob, step: number) {
  await settled()
  const before = await footprint()
  const { answer, children } = await spawnChildren(stage.runtime, parent, [{}], step)
  expect(children).toEqual([])
  expect(await footprint()).toEqual(before)
  return answer.kind === 'answered' ? answer.outputs.get('call_0') : undefined
}

test('COST-2: a job may have MAX_CHILDREN_PER_JOB children, ended ones included', async () => {
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'children')).id)
  const { children } = await spawnChildren(stage.runtime, parent, [{}, {}, {}])
  expect(children).toHaveLength(3)
  expect(await refusedChild(parent, 1)).toEqual({
    mode: 'async',
    jobId: '',
    convoId: '',
    state: 'failed',
    reason: 'cap',
    error: 'You have spawned 3 sub-agents, which is the limit. Finish with what you have.',
  })
})

test('COST-2: a tree may have MAX_JOBS_PER_TREE jobs, whoever in it spawns', async () => {
  const root = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'tree')).id)
  const { children } = await spawnChildren(stage.runtime, root, [{}, {}])
  const child = await claimNext(stage.runtime, children[0]?.id ?? '')
  await spawnChildren(stage.runtime, child, [{}, {}])
  for (const parent of [child, root])
    expect(await refusedChild(parent, 1)).toMatchObject({
      reason: 'cap',
      error: 'This tree has 5 jobs, which is the limit. Finish with what you have.',
    })
})

test('COST-2: a user may have MAX_ACTIVE_JOBS_PER_USER unfinished jobs', async () => {
  for (let made = 0; made < 6; made += 1) await spawnJob(stage.runtime, 'busy')
  await settled()
  const before = await footprint()
  const answer = await spawnAgent(stage.runtime, hostOrigin('busy'), spawnInput())
  expect(answer).toMatchObject({
    kind: 'refused',
    refusal: {
      reason: 'cap',
      error: 'User busy has 6 unfinished jobs; 6 are allowed. Wait until some have ended, or abort some.',
    },
  })
  expect(await footprint()).toEqual(before)
})

test('STUCK-12: a refused spawn among others is its own result; the others are made', async () => {
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'mixed')).id)
  const { answer, children } = await spawnChildren(stage.runtime, parent, [
    {},
    { bot: { botGroup: 'forge', botHandle: 'nobody' } },
    { message: '' },
    {},
  ])
  expect(children.map((child) => child.parentToolCallId)).toEqual(['call_0', 'call_3'])
  const outputs = answer.kind === 'answered' ? [...answer.outputs] : []
  expect(outputs.map(([id, output]) => [id, output.state, 'reason' in output ? output.reason : null])).toEqual([
    ['call_0', 'pending', null],
    ['call_1', 'failed', 'unknown_bot'],
    ['call_2', 'failed', 'invalid_request'],
    ['call_3', 'pending', null],
  ])
})

test("input that could not be parsed is answered with the parser's words", async () => {
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'unparsed')).id)
  const answer = await answerSpawnCalls(
    stage.runtime,
    { claim: claimOf(parent), rootJobId: parent.rootJobId, step: 0, originOf: (id) => jobOrigin(parent, 0, id) },
    [{ toolCallId: 'c', toolName: 'spawnAgent', input: { invalid: 'message is missing.' } }],
  )
  expect(answer.kind === 'answered' && answer.outputs.get('c')).toEqual({
    mode: 'sync',
    jobId: '',
    convoId: '',
    state: 'failed',
    reason: 'invalid_tool_input',
    error: 'message is missing.',
  })
})

test('an id that looks like a bot’s address names no bot, whoever spawns that one at the same moment', async () => {
  const asId = spawnInput({ bot: { botId: 'forge/writer' } })
  const [named, odd] = await Promise.all([
    spawnAgent(stage.runtime, hostOrigin('zoe'), spawnInput()),
    spawnAgent(stage.runtime, hostOrigin('zoe'), asId),
  ])
  expect([named, odd]).toMatchObject([{ kind: 'accepted' }, { kind: 'refused', refusal: { reason: 'unknown_bot' } }])
})
