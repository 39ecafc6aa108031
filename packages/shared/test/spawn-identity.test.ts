// Whom a sub-agent runs as: alice may delegate to bob, bob to nobody, admin to all.
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import {
  claimNext,
  COMPLETED,
  hostOrigin,
  jobOrigin,
  spawnChildren,
  spawnInput,
  spawnJob,
} from '@offshoot/testing/jobs-without-worker'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { AgentJob } from '../src/db/agent-jobs.ts'
import { bringOutcome } from '../src/operations/child-outcome.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { startTurn } from '../src/operations/start-turn.ts'
import { originOfContext } from '../src/tools/spawn-agent.ts'
import { spawnAgent } from '../src/operations/spawn-agent.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage()
  const { database } = stage.runtime
  await stage.putBot('writer')
  await database.user.createMany({
    data: [{ id: 'admin', admin: true }, { id: 'alice' }, { id: 'bob' }, { id: 'carol' }],
  })
  await database.userDelegate.create({ data: { userId: 'alice', delegateUserId: 'bob' } })
})
afterAll(() => stage.close())

async function refusalOf(userId: string, runAsUserId: string, origin: Parameters<typeof hostOrigin>[1] = {}) {
  const answer = await spawnAgent(stage.runtime, hostOrigin(userId, origin), spawnInput({ runAsUserId }))
  return answer.kind === 'refused' ? answer.refusal : undefined
}

function notAuthorized(userId: string) {
  return {
    refused: true,
    reason: 'not_authorized',
    error: `Not authorized to spawn sub-agent as user ${userId}. Allowed are yourself and users that you are a delegate of; leave runAsUserId out to run as yourself.`,
  }
}

test("without runAsUserId, or with one's own id, a job runs as the caller", async () => {
  for (const input of [{}, { runAsUserId: 'bob' }])
    expect(await spawnJob(stage.runtime, 'bob', input)).toMatchObject({
      ownerId: 'bob',
      triggeredById: 'bob',
      grant: 'self',
    })
})

test('alice as bob works: convo and messages belong to bob, triggeredBy is alice', async () => {
  const { database } = stage.runtime
  const job = await spawnJob(stage.runtime, 'alice', { runAsUserId: 'bob' }, { spaceId: 'space-of-alice' })
  expect(job).toMatchObject({
    ownerId: 'bob',
    triggeredById: 'alice',
    triggeredByIds: ['alice'],
    grant: 'delegate',
  })
  const convo = await database.convo.findUnique({ where: { id: job.convoId }, include: { messages: true } })
  expect(convo).toMatchObject({ ownerId: 'bob', messages: [{ ownerId: 'bob', role: 'user' }] })
  const events = await database.agentEvent.findMany({ where: { jobId: job.id } })
  expect(events).toMatchObject([{ kind: 'spawned', actorId: 'alice', data: { ownerId: 'bob', grant: 'delegate' } }])
})

test("a child's convo has no space unless it runs as the parent's owner", async () => {
  const { database } = stage.runtime
  const spaceOf = async (job: { convoId: string }) =>
    (await database.convo.findUniqueOrThrow({ where: { id: job.convoId } })).spaceId
  const origin = { spaceId: 'space-1' }
  expect(await spaceOf(await spawnJob(stage.runtime, 'alice', {}, origin))).toBe('space-1')
  expect(await spaceOf(await spawnJob(stage.runtime, 'alice', { runAsUserId: 'bob' }, origin))).toBeNull()
})

test('bob as alice is refused: a delegation has one direction', async () => {
  expect(await refusalOf('bob', 'alice')).toEqual(notAuthorized('alice'))
  expect(await refusalOf('carol', 'bob')).toEqual(notAuthorized('bob'))
})

test('a user who does not exist is refused in the same words', async () => {
  expect(await refusalOf('bob', 'nobody')).toEqual(notAuthorized('nobody'))
})

test('an admin may run as anybody', async () => {
  expect(await spawnJob(stage.runtime, 'admin', { runAsUserId: 'carol' })).toMatchObject({
    ownerId: 'carol',
    triggeredById: 'admin',
    grant: 'admin',
  })
})

test('SEC-4: one who acts for an admin has no admin rights', async () => {
  expect(await refusalOf('admin', 'carol', { withoutAdminRights: true })).toEqual(notAuthorized('carol'))
})

test('SEC-4: nor have the jobs that such a job or turn spawns', async () => {
  const { database } = stage.runtime
  const job = await spawnJob(stage.runtime, 'admin', {}, { withoutAdminRights: true })
  const convo = { id: 'convo-of-admin', botId: job.botId, botLabel: job.botLabel, ownerId: 'admin' }
  await database.convo.create({ data: convo })
  const message = { text: 'hello', parts: [{ type: 'text' as const, text: 'hello' }] }
  const turn = await startTurn(stage.runtime, {
    convoId: convo.id,
    userId: 'admin',
    withoutAdminRights: true,
    message,
    ifBusy: 'reject',
  })
  for (const id of [job.id, 'jobId' in turn ? turn.jobId : '']) {
    const parent = await claimNext(stage.runtime, id)
    const { answer, children } = await spawnChildren(stage.runtime, parent, [{}, { runAsUserId: 'carol' }])
    expect(children).toMatchObject([{ ownerId: 'admin' }])
    expect(answer.kind === 'answered' && answer.outputs.get('call_1')).toMatchObject({
      error: notAuthorized('carol').error,
    })
  }
  // Nor has a turn that the outcome of a sub-agent begins.
  const ended = await database.agentJob.findUniqueOrThrow({ where: { id: 'jobId' in turn ? turn.jobId : '' } })
  await finishAgent(stage.runtime, ended, { guard: { token: ended.claimToken ?? '' }, ending: COMPLETED })
  await bringOutcome(stage.runtime, { convoId: convo.id, key: 'outcome-1', text: 'done', wakeIdle: true })
  const turns = await database.agentJob.findMany({ where: { convoId: convo.id }, orderBy: { id: 'asc' } })
  expect(turns.map(({ state, grant }) => `${state} ${grant}`)).toEqual(['completed context', 'pending context'])
  // A user who is no admin loses nothing by it.
  expect(await spawnJob(stage.runtime, 'alice', {}, { withoutAdminRights: true })).toMatchObject({ grant: 'self' })
})

test('SEC-4: a job whose right was taken back spawns nothing, nor does one below it', async () => {
  const { database } = stage.runtime
  const right = { userId: 'alice', delegateUserId: 'dora' }
  await database.userDelegate.create({ data: right })
  const top = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice', { runAsUserId: 'dora' })).id)
  const { children } = await spawnChildren(stage.runtime, top, [{}])
  const child = await claimNext(stage.runtime, children[0]?.id ?? '')
  await database.userDelegate.deleteMany({ where: right })
  for (const parent of [top, child])
    expect(await spawnAgent(stage.runtime, jobOrigin(parent, 1, 'call_x'), spawnInput())).toEqual({
      kind: 'refused',
      refusal: {
        refused: true,
        reason: 'not_authorized',
        error: 'Not authorized to spawn sub-agent as user dora. The right to run as that user was taken back.',
      },
    })
})

/** What a tool that runs inside the job, or its host, may say of it. */
const contextUnder = (parent: AgentJob, delegateUserIds: string[]) => ({
  userId: parent.ownerId,
  parentConvoId: parent.convoId,
  parentConvoOwnerId: parent.ownerId,
  parentConvoSpaceId: null,
  spawnDepth: 0,
  parentJobId: parent.id,
  delegateUserIds,
})

test('SEC-4: a context that names a parent job says no more than that job may: depth and delegates are the job’s', async () => {
  const root = await spawnJob(stage.runtime, 'carol', {}, { delegateUserIds: ['alice'] })
  const origin = await originOfContext(stage.runtime, contextUnder(root, ['alice', 'bob']))
  expect(origin).toMatchObject({ depth: 1, delegateUserIds: ['alice'] })
  expect(await spawnAgent(stage.runtime, origin, spawnInput({ runAsUserId: 'bob' }))).toMatchObject({
    refusal: notAuthorized('bob'),
  })
  const deep = await spawnJob(stage.runtime, 'carol', {}, { depth: 2 })
  const below = await originOfContext(stage.runtime, contextUnder(deep, []))
  expect(await spawnAgent(stage.runtime, below, spawnInput())).toMatchObject({
    kind: 'refused',
    refusal: { reason: 'depth_limit' },
  })
})

test('delegates of the context may be run as, and no one else', async () => {
  const origin = { delegateUserIds: ['alice'] }
  expect(await spawnJob(stage.runtime, 'carol', { runAsUserId: 'alice' }, origin)).toMatchObject({
    ownerId: 'alice',
    triggeredById: 'carol',
    grant: 'context',
    delegateUserIds: ['alice'],
  })
  expect(await refusalOf('carol', 'bob', origin)).toEqual(notAuthorized('bob'))
})

test("SEC-4: a child of a delegated job runs as that job's owner and may not delegate further", async () => {
  // bob's own delegation, which alice's job as bob must not reach through him.
  await stage.runtime.database.userDelegate.create({ data: { userId: 'bob', delegateUserId: 'carol' } })
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice', { runAsUserId: 'bob' })).id)
  const { answer, children } = await spawnChildren(stage.runtime, parent, [
    {},
    { runAsUserId: 'bob' },
    { runAsUserId: 'carol' },
    { runAsUserId: 'alice' },
  ])
  expect(children).toMatchObject([
    { ownerId: 'bob', triggeredById: 'bob', triggeredByIds: ['bob', 'alice'] },
    { ownerId: 'bob', triggeredById: 'bob', triggeredByIds: ['bob', 'alice'] },
  ])
  const outputs = answer.kind === 'answered' ? answer.outputs : new Map()
  expect(outputs.get('call_2')).toMatchObject({ error: notAuthorized('carol').error })
  expect(outputs.get('call_3')).toMatchObject({ error: notAuthorized('alice').error })
})

test('SEC-4: nor may a grandchild, whose own parent was not delegated again', async () => {
  const delegated = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice', { runAsUserId: 'bob' })).id)
  const child = (await spawnChildren(stage.runtime, delegated, [{}])).children[0]
  const { answer, children } = await spawnChildren(stage.runtime, await claimNext(stage.runtime, child?.id ?? ''), [
    { runAsUserId: 'carol' },
  ])
  expect(children).toEqual([])
  expect(answer.kind === 'answered' && answer.outputs.get('call_0')).toMatchObject({
    error: notAuthorized('carol').error,
  })
})

test('SEC-4: admin rights do not pass to a child through runAsUserId', async () => {
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'admin', { runAsUserId: 'carol' })).id)
  const origin = jobOrigin(parent, 0, 'call_x')
  expect(await spawnAgent(stage.runtime, origin, spawnInput({ runAsUserId: 'alice' }))).toEqual({
    kind: 'refused',
    refusal: notAuthorized('alice'),
  })
})

test('SEC-4: alice as admin gets no admin rights in what her job spawns', async () => {
  await stage.runtime.database.userDelegate.create({ data: { userId: 'alice', delegateUserId: 'admin' } })
  const parent = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice', { runAsUserId: 'admin' })).id)
  expect(parent).toMatchObject({ ownerId: 'admin', grant: 'delegate' })
  const { children } = await spawnChildren(stage.runtime, parent, [{}, { runAsUserId: 'carol' }])
  expect(children).toMatchObject([{ ownerId: 'admin', grant: 'context' }])
  const below = await spawnChildren(stage.runtime, await claimNext(stage.runtime, children[0]?.id ?? ''), [
    { runAsUserId: 'carol' },
  ])
  expect(below.children).toEqual([])
})

test('everyone who triggered an ancestor is kept, each once', async () => {
  const root = await claimNext(
    stage.runtime,
    (await spawnJob(stage.runtime, 'alice', {}, { delegateUserIds: ['carol'] })).id,
  )
  const child = (await spawnChildren(stage.runtime, root, [{ runAsUserId: 'carol' }])).children[0]
  expect(child).toMatchObject({ ownerId: 'carol', triggeredById: 'alice', triggeredByIds: ['alice'], grant: 'context' })
  const grandchild = (await spawnChildren(stage.runtime, await claimNext(stage.runtime, child?.id ?? ''), [{}]))
    .children[0]
  expect(grandchild).toMatchObject({ ownerId: 'carol', triggeredById: 'carol', triggeredByIds: ['carol', 'alice'] })
})

test('another user finds no bot of somebody else', async () => {
  await stage.runtime.database.bot.update({
    where: { group_handle: { group: 'forge', handle: 'writer' } },
    data: { ownerId: 'carol' },
  })
  const answer = await spawnAgent(stage.runtime, hostOrigin('alice'), spawnInput())
  expect(answer).toMatchObject({
    kind: 'refused',
    refusal: { reason: 'unknown_bot', error: 'Bot not found: forge/writer.' },
  })
  expect(await spawnJob(stage.runtime, 'carol')).toMatchObject({ ownerId: 'carol' })
})
