// Spawns at the same instant: one key makes one job, and caps hold.
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import {
  acceptedJob,
  claimNext,
  claimOf,
  hostOrigin,
  jobOrigin,
  spawnChildren,
  spawnInput,
  spawnJob,
} from '@offshoot/testing/jobs-without-worker'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOffshoot } from '../src/client.ts'
import { requestAbort } from '../src/operations/abort-agent.ts'
import { answerSpawnCalls } from '../src/operations/answer-spawn-calls.ts'
import { type SpawnAnswer, spawnAgent } from '../src/operations/spawn-agent.ts'
import { lockUser, transact } from '../src/operations/transact.ts'
import { originOfContext } from '../src/tools/spawn-agent.ts'

const CAPS = { MAX_CHILDREN_PER_JOB: '7', MAX_JOBS_PER_TREE: '12', MAX_ACTIVE_JOBS_PER_USER: '20' }

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ environment: CAPS })
  await stage.putBot('writer')
})
afterAll(() => stage.close())

const withKey = (idempotencyKey: string, userId = 'alice') => hostOrigin(userId, { idempotencyKey })
const times = <T>(count: number, make: (at: number) => T): T[] => Array.from({ length: count }, (_, at) => make(at))
const countJobs = (where: object) => stage.runtime.database.agentJob.count({ where })

function kindsOf(answers: readonly SpawnAnswer[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const answer of answers) {
    const kind = answer.kind === 'refused' ? answer.refusal.reason : answer.kind
    counts[kind] = (counts[kind] ?? 0) + 1
  }
  return counts
}

test('STATE-10: the same key with the same request gives the same job', async () => {
  const first = await spawnAgent(stage.runtime, withKey('k1'), spawnInput({ tags: { a: '1', b: '2' } }))
  const again = await spawnAgent(stage.runtime, withKey('k1'), spawnInput({ tags: { b: '2', a: '1' } }))
  expect(first).toMatchObject({ kind: 'accepted', repeated: false })
  expect(again).toMatchObject({ kind: 'accepted', repeated: true, job: { id: acceptedJob(first).id } })
})

test('STATE-10: the same key with another request is a conflict', async () => {
  await spawnAgent(stage.runtime, withKey('k2'), spawnInput())
  for (const other of [{ message: 'Other.' }, { mode: 'sync' as const }, { overrides: { temperature: 1 } }])
    expect(await spawnAgent(stage.runtime, withKey('k2'), spawnInput(other))).toEqual({ kind: 'conflict' })
  expect(await countJobs({ idempotencyKey: 'k2' })).toBe(1)
})

test('SEC-2: a key is unique per caller, and is not the id of the job', async () => {
  const ofAlice = acceptedJob(await spawnAgent(stage.runtime, withKey('k3'), spawnInput()))
  const ofBob = acceptedJob(await spawnAgent(stage.runtime, withKey('k3', 'bob'), spawnInput()))
  expect(ofBob.id).not.toBe(ofAlice.id)
  expect([ofAlice.id, ofBob.id]).not.toContain('k3')
})

test('STATE-10: 20 spawns at once with one key make one job, and all answer with it', async () => {
  const answers = await Promise.all(times(20, () => spawnAgent(stage.runtime, withKey('k4', 'carol'), spawnInput())))
  expect(kindsOf(answers)).toEqual({ accepted: 20 })
  expect(new Set(answers.map((answer) => acceptedJob(answer).id)).size).toBe(1)
  expect(answers.filter((answer) => answer.kind === 'accepted' && !answer.repeated)).toHaveLength(1)
  expect(await countJobs({ ownerId: 'carol' })).toBe(1)
  expect(await stage.runtime.database.convo.count({ where: { ownerId: 'carol' } })).toBe(1)
})

test("STATE-10: a repeat answers with its job also when the user's cap is reached by that job", async () => {
  for (let made = 0; made < 19; made += 1) await spawnJob(stage.runtime, 'full')
  const answers = await Promise.all(times(20, () => spawnAgent(stage.runtime, withKey('last', 'full'), spawnInput())))
  expect(kindsOf(answers)).toEqual({ accepted: 20 })
  expect(await countJobs({ ownerId: 'full' })).toBe(20)
  expect(kindsOf([await spawnAgent(stage.runtime, hostOrigin('full'), spawnInput())])).toEqual({ cap: 1 })
})

test('COST-2: the cap of active jobs per user holds under 50 concurrent spawns', async () => {
  const answers = await Promise.all(times(50, () => spawnAgent(stage.runtime, hostOrigin('dave'), spawnInput())))
  expect(kindsOf(answers)).toEqual({ accepted: 20, cap: 30 })
  expect(await countJobs({ ownerId: 'dave' })).toBe(20)
})

test("COST-2: a running job's caps on children hold under 50 concurrent spawns of its own", async () => {
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'erin')).id)
  const answers = await Promise.all(
    times(50, (at) =>
      answerSpawnCalls(
        stage.runtime,
        { claim: claimOf(parent), rootJobId: parent.rootJobId, step: at, originOf: (id) => jobOrigin(parent, at, id) },
        [{ toolCallId: 'call_0', toolName: 'spawnAgent', input: spawnInput() }],
      ),
    ),
  )
  const states = answers.map((answer) =>
    answer.kind === 'answered' ? answer.outputs.get('call_0')?.state : answer.kind,
  )
  expect(states.filter((state) => state === 'pending')).toHaveLength(7)
  expect(states.filter((state) => state === 'failed')).toHaveLength(43)
  expect(await countJobs({ parentJobId: parent.id })).toBe(7)
})

/** Spawns by code of a tool that runs inside a job and uses the host client. */
const contextUnder = (parent: { id: string; ownerId: string; convoId: string; depth: number }) => ({
  userId: parent.ownerId,
  parentConvoId: parent.convoId,
  parentConvoOwnerId: parent.ownerId,
  parentConvoSpaceId: null,
  spawnDepth: parent.depth,
  parentJobId: parent.id,
})

test('COST-2: the caps hold, too, under 50 concurrent spawns by a tool that runs inside the job', async () => {
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'frank')).id)
  const answers = await Promise.all(
    times(50, async () =>
      spawnAgent(stage.runtime, await originOfContext(stage.runtime, contextUnder(parent)), spawnInput()),
    ),
  )
  expect(kindsOf(answers)).toEqual({ accepted: 7, cap: 43 })
  expect(await countJobs({ parentJobId: parent.id })).toBe(7)
})

test('COST-2: the cap of a tree holds when all its jobs spawn at once', async () => {
  const root = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'grace')).id)
  const { children } = await spawnChildren(stage.runtime, root, [{}, {}, {}, {}])
  const parents = await Promise.all(children.map((child) => claimNext(stage.runtime, child.id)))
  await Promise.all(parents.map((parent) => spawnChildren(stage.runtime, parent, [{}, {}, {}, {}, {}])))
  expect(await countJobs({ rootJobId: root.id })).toBe(12)
  const tree = await stage.runtime.database.agentTree.findUnique({ where: { rootJobId: root.id } })
  expect(tree?.jobs).toBe(12)
})

test('COST-1: a spawn in flight does not escape an abort of its parent', async () => {
  for (let round = 0; round < 30; round += 1) {
    const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, `heidi-${round}`)).id)
    const asTool = await originOfContext(stage.runtime, contextUnder(parent))
    await Promise.all([
      spawnChildren(stage.runtime, parent, [{}, {}]),
      spawnAgent(stage.runtime, asTool, spawnInput()),
      requestAbort(stage.runtime, parent, { by: parent.ownerId, reason: 'aborted_by_user', text: null }),
    ])
    expect(await countJobs({ parentJobId: parent.id, state: { not: 'aborted' } })).toBe(0)
  }
})

test('COST-1: a tool whose job has ended meanwhile spawns nothing any more', async () => {
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'ivan')).id)
  const origin = await originOfContext(stage.runtime, contextUnder(parent))
  await stage.runtime.database.agentJob.update({ where: { id: parent.id }, data: { state: 'completed' } })
  expect(await spawnAgent(stage.runtime, origin, spawnInput())).toMatchObject({ kind: 'refused' })
  expect(await countJobs({ parentJobId: parent.id })).toBe(0)
})

test('STATE-10: a tool call of a running job that is answered again finds its child', async () => {
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'judy')).id)
  const first = await spawnChildren(stage.runtime, parent, [{}, {}])
  const again = await spawnChildren(stage.runtime, parent, [{}, {}])
  expect(again.children.map((child) => child.id)).toEqual(first.children.map((child) => child.id))
  expect(again.answer).toEqual(first.answer)
  const reused = await spawnChildren(stage.runtime, parent, [{}, {}], 1)
  expect(reused.children.map((child) => child.id)).not.toEqual(first.children.map((child) => child.id))
})

test("STATE-10: what a tool spawns inside a job is never taken for the child of the model's own call", async () => {
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'leo')).id)
  const ofTool: string[] = []
  for (let made = 0; made < 2; made += 1) {
    const origin = await originOfContext(stage.runtime, contextUnder(parent))
    ofTool.push(acceptedJob(await spawnAgent(stage.runtime, origin, spawnInput())).id)
  }
  const { children } = await spawnChildren(stage.runtime, parent, [{}], parent.steps)
  expect(children).toHaveLength(3)
  expect(children.map((child) => child.parentToolCallId)).toContain('call_0')
  expect(new Set(ofTool).size).toBe(2)
})

test("a host's spawn answers a reused key for another request with a sentence", async () => {
  const offshoot = await createOffshoot({ environment: stage.environment, extensions: {} })
  try {
    const context = {
      userId: 'kim',
      parentConvoId: 'c',
      parentConvoOwnerId: 'kim',
      parentConvoSpaceId: null,
      spawnDepth: 0,
    }
    const first = await offshoot.spawn(context, spawnInput(), { idempotencyKey: 'k' })
    expect((await offshoot.spawn(context, spawnInput(), { idempotencyKey: 'k' })).id).toBe(first.id)
    const other = await offshoot.spawn(context, spawnInput({ message: 'Other.' }), { idempotencyKey: 'k' })
    expect(await other.await()).toMatchObject({
      state: 'failed',
      jobId: '',
      reason: 'invalid_request',
      error: 'The idempotency key was used for another request. Use a new key.',
    })
  } finally {
    await offshoot.close()
  }
})

test('COST-2: of spawns at one moment a user has as many as allowed, each with its place in the queue', async () => {
  const spawns = times(25, () => spawnAgent(stage.runtime, hostOrigin('grouped'), spawnInput()))
  const answers = await Promise.all(spawns)
  expect(kindsOf(answers)).toEqual({ accepted: 20, cap: 5 })
  const priorities = answers.flatMap((answer) => (answer.kind === 'accepted' ? [answer.job.priority] : []))
  expect(priorities.toSorted((a, b) => a - b)).toEqual(times(20, (at) => 10 + at))
})

test('a user whose row somebody holds is waited for by nobody else', async () => {
  const { runtime } = stage
  await runtime.database.user.createMany({ data: [{ id: 'held' }, { id: 'free' }] })
  const [locked, release] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const holding = transact(runtime, async (tx) => {
    await lockUser(tx, 'held')
    locked.resolve()
    await release.promise
  })
  await locked.promise
  let heldIsThere = false
  const held = spawnAgent(runtime, hostOrigin('held'), spawnInput()).finally(() => (heldIsThere = true))
  const free = await spawnAgent(runtime, hostOrigin('free'), spawnInput())
  expect([free.kind, heldIsThere]).toEqual(['accepted', false])
  release.resolve()
  await holding
  expect((await held).kind).toBe('accepted')
})
