// Whose job is it? A foreign job and an unknown one get the same answer in every operation.
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { claimNext, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { listInputSchema } from '../src/contracts/agent-job.ts'
import type { AgentJob, ClaimedJob } from '../src/db/agent-jobs.ts'
import { newId } from '../src/ids.ts'
import { abortAgent } from '../src/operations/abort-agent.ts'
import { checkAgent, checkAgentWithTotals } from '../src/operations/check-agent.ts'
import { listAgents, readTree } from '../src/operations/list-agents.ts'
import { messageAgent } from '../src/operations/message-agent.ts'
import type { JobReader } from '../src/operations/readable-jobs.ts'
import { startTurn } from '../src/operations/start-turn.ts'

let stage: TestStage
let root: ClaimedJob
let child: ClaimedJob
let grandchild: AgentJob
let ofBob: AgentJob

/** alice's job spawned one as bob, which spawned one of its own; bob has another job beside. */
beforeAll(async () => {
  stage = await openTestStage()
  const { runtime } = stage
  await stage.putBot('writer')
  await runtime.database.user.createMany({ data: [{ id: 'admin', admin: true }, { id: 'alice' }, { id: 'bob' }] })
  await runtime.database.userDelegate.create({ data: { userId: 'alice', delegateUserId: 'bob' } })
  root = await claimNext(runtime, (await spawnJob(runtime, 'alice')).id)
  child = await claimNext(runtime, (await spawnChild(runtime, root, { runAsUserId: 'bob' })).id)
  grandchild = await spawnChild(runtime, child)
  ofBob = await spawnJob(runtime, 'bob')
})
afterAll(() => stage.close())

const user = (userId: string, admin = false): JobReader => ({ userId, admin })
const check = (reader: JobReader, jobId: string) =>
  checkAgent(stage.runtime, reader, { jobId, includePartial: true, waitSeconds: 0 })

const abort = (reader: JobReader, jobId: string) => abortAgent(stage.runtime, reader, { jobId }, 'actor')
const listOf = (reader: JobReader, query: object) => listAgents(stage.runtime, reader, listInputSchema.parse(query))

/** Everything that the operations say to a reader about a job, with its id left out. */
async function answersOf(reader: JobReader, jobId: string): Promise<string> {
  const list = (query: object) => listOf(reader, query)
  const answers = [
    await check(reader, jobId),
    await checkAgent(stage.runtime, reader, { jobId, includePartial: false, waitSeconds: 30 }),
    await checkAgentWithTotals(stage.runtime, reader, { jobId, includePartial: true, waitSeconds: 0 }),
    await abortAgent(stage.runtime, reader, { jobId, reason: 'mine now' }, 'mallory'),
    await readTree(stage.runtime, reader, jobId),
    await messageAgent(stage.runtime, reader, { jobId, message: 'mine now' }, 'mallory'),
    await list({ rootJobId: jobId }),
    await list({ parentJobId: jobId }),
  ]
  return JSON.stringify(answers).replaceAll(jobId, '<id>')
}

const footprint = async () => ({
  jobs: await stage.runtime.database.agentJob.findMany({ orderBy: { id: 'asc' } }),
  events: await stage.runtime.database.agentEvent.count(),
  inbox: await stage.runtime.database.inboxItem.count(),
})

test('SEC-1: a foreign job answers byte for byte like an unknown one, and is left alone', async () => {
  const unknown = newId()
  const before = await footprint()
  for (const job of [root, child, grandchild, ofBob])
    expect(await answersOf(user('mallory'), job.id)).toBe(await answersOf(user('mallory'), unknown))
  expect(await footprint()).toEqual(before)
})

test('SEC-1: ids that no job can have get the same answer as well', async () => {
  for (const jobId of ['', '*', '%', "' or 1=1 --", 'a\u0000b', '\ud83d', '😀'.repeat(50)]) {
    const notFound = { jobId, state: 'failed', error: `Job ${jobId} not found.` }
    const query = { rootJobId: jobId, parentJobId: jobId, convoId: jobId, cursor: jobId, limit: 5 }
    for (const reader of [user('mallory'), user('admin', true), { runningJobId: root.id }]) {
      expect(await check(reader, jobId)).toEqual(notFound)
      expect(await abort(reader, jobId)).toEqual({ ...notFound, abortedDescendants: 0 })
      expect(await readTree(stage.runtime, reader, jobId)).toBeNull()
      expect(await listAgents(stage.runtime, reader, query)).toEqual({ jobs: [] })
    }
  }
})

const turn = (convoId: string) =>
  startTurn(stage.runtime, {
    convoId,
    userId: 'mallory',
    message: { text: 'hello', parts: [{ type: 'text', text: 'hello' }] },
    ifBusy: 'steer',
  })

test('SEC-1: a message to a foreign convo is like one to an unknown convo', async () => {
  const before = await footprint()
  expect(await turn(root.convoId)).toEqual(await turn(newId()))
  expect(await turn(root.convoId)).toEqual({ kind: 'not_found' })
  expect(await footprint()).toEqual(before)
})

test('SEC-1: the owner, who triggered the job, who triggered an ancestor, and an admin may see it', async () => {
  const mayRead: [string, AgentJob, JobReader[]][] = [
    ['root', root, [user('alice'), user('admin', true)]],
    ['child', child, [user('bob'), user('alice'), user('admin', true)]],
    ['grandchild', grandchild, [user('bob'), user('alice'), user('admin', true)]],
  ]
  for (const [name, job, readers] of mayRead)
    for (const reader of readers) expect([name, (await check(reader, job.id)).error]).toEqual([name, undefined])
  expect(await check(user('bob'), root.id)).toEqual({
    jobId: root.id,
    state: 'failed',
    error: `Job ${root.id} not found.`,
  })
  expect((await check(user('alice'), ofBob.id)).error).toBe(`Job ${ofBob.id} not found.`)
})

test('SEC-1: lists and trees show what the reader may see, and nothing else', async () => {
  const ids = async (reader: JobReader) =>
    (await listAgents(stage.runtime, reader, listInputSchema.parse({}))).jobs.map((job) => job.jobId)
  expect(await ids(user('alice'))).toEqual([grandchild.id, child.id, root.id])
  expect(await ids(user('bob'))).toEqual([ofBob.id, grandchild.id, child.id])
  expect(await ids(user('admin', true))).toEqual([ofBob.id, grandchild.id, child.id, root.id])
  expect(await ids(user('mallory'))).toEqual([])
  const tree = await readTree(stage.runtime, user('alice'), root.id)
  expect(tree?.jobs.map((job) => [job.jobId, job.subtree.jobs])).toEqual([
    [root.id, 3],
    [child.id, 2],
    [grandchild.id, 1],
  ])
})

test('SEC-1: a running job reaches exactly its own subtree: not itself, its parent or a sibling', async () => {
  const sees = async (runningJobId: string) => {
    const found: string[] = []
    for (const job of [root, child, grandchild, ofBob])
      if ((await check({ runningJobId }, job.id)).error === undefined) found.push(job.id)
    return found
  }
  expect(await sees(root.id)).toEqual([child.id, grandchild.id])
  expect(await sees(child.id)).toEqual([grandchild.id])
  expect(await sees(grandchild.id)).toEqual([])
  expect(await sees(ofBob.id)).toEqual([])
})

const ofAlice = (query: object) => listOf(user('alice'), query)

test('a list is paged newest first, and filtered by state, parent, root and convo', async () => {
  const first = await ofAlice({ limit: 2 })
  expect(first.jobs.map((job) => job.jobId)).toEqual([grandchild.id, child.id])
  expect(first.nextCursor).toBe(child.id)
  const second = await ofAlice({ limit: 2, cursor: first.nextCursor })
  expect(second.jobs.map((job) => job.jobId)).toEqual([root.id])
  expect(second.nextCursor).toBeUndefined()
  const idsOf = async (query: object) => (await ofAlice(query)).jobs.map((job) => job.jobId)
  expect(await idsOf({ state: 'pending' })).toEqual([grandchild.id])
  expect(await idsOf({ state: 'running' })).toEqual([child.id, root.id])
  expect(await idsOf({ live: 'false' })).toEqual([])
  expect(await idsOf({ parentJobId: root.id })).toEqual([child.id])
  expect(await idsOf({ rootJobId: root.id, live: 'true' })).toEqual([grandchild.id, child.id, root.id])
  expect(await idsOf({ convoId: child.convoId })).toEqual([child.id])
})

test('a job that was claimed before and is pending again shows as running, in lists as in checks', async () => {
  const { database } = stage.runtime
  await database.agentJob.update({ where: { id: grandchild.id }, data: { attempt: 1 } })
  const states = async (state: string) =>
    (await listAgents(stage.runtime, user('bob'), listInputSchema.parse({ state }))).jobs.map((job) => job.jobId)
  expect(await states('running')).toContain(grandchild.id)
  expect(await states('pending')).toEqual([ofBob.id])
  expect(await check(user('bob'), grandchild.id)).toMatchObject({ state: 'running' })
  await database.agentJob.update({ where: { id: grandchild.id }, data: { attempt: 0 } })
})

test('SEC-1: an abort is for those who may see the job', async () => {
  expect(await abort(user('alice'), grandchild.id)).toMatchObject({ state: 'aborted', abortedDescendants: 0 })
  expect(await abort({ runningJobId: root.id }, ofBob.id)).toEqual({
    jobId: ofBob.id,
    state: 'failed',
    error: `Job ${ofBob.id} not found.`,
    abortedDescendants: 0,
  })
  expect(await abort(user('bob'), ofBob.id)).toMatchObject({ state: 'aborted' })
})
