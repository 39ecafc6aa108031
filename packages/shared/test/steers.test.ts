// Whose a steer is while its job waits on sync children.
import { claimNext, spawnChildren, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, SUB_AGENT_TOOLS, type TestStage } from '@offshoot/testing/test-stage'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { ClaimedJob } from '../src/db/agent-jobs.ts'
import { loadInbox } from '../src/db/journal.ts'
import { loadMessages } from '../src/db/convos.ts'
import { insertSteer } from '../src/operations/steer-agent.ts'
import { lockTree, transact } from '../src/operations/transact.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage()
  await stage.putBot('writer', { toolNames: SUB_AGENT_TOOLS })
})
afterAll(() => stage.close())

const claimed = async (): Promise<ClaimedJob> => claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice')).id)

async function steer(job: { id: string; rootJobId: string }, key: string, text = 'be quick') {
  return transact(stage.runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    return insertSteer(tx, job.id, { key, text, actorId: 'alice' })
  })
}

const textsFor = async (jobId: string) =>
  (await loadInbox(stage.runtime.database, jobId)).map((item) => item.parts[0]?.text)

test('a steer stays with a job whose sync child was spawned without steers: "forward"', async () => {
  const parent = await claimed()
  await spawnChildren(stage.runtime, parent, [{ mode: 'sync' }])
  expect(await steer(parent, 'k1')).toEqual({ receiverId: parent.id })
})

test('a steer goes on to a sync child that was spawned with steers: "forward", once, and stays in the convo', async () => {
  const parent = await claimed()
  const { children } = await spawnChildren(stage.runtime, parent, [{ mode: 'sync', steers: 'forward' }])
  const [child] = children
  for (let times = 0; times < 2; times += 1) expect(await steer(parent, 'k2')).toEqual({ receiverId: child?.id })
  expect(await textsFor(child?.id ?? '')).toEqual(['be quick'])
  expect(await textsFor(parent.id)).toEqual([])
  const messages = await loadMessages(stage.runtime.database, { convoId: parent.convoId })
  expect(messages.map(({ role, parts }) => [role, parts[0]])).toEqual([
    ['user', { type: 'text', text: 'Write.' }],
    ['user', { type: 'text', text: 'be quick' }],
  ])
})

test('a steer goes on only as far as each level says so', async () => {
  const root = await claimed()
  const { children } = await spawnChildren(stage.runtime, root, [{ mode: 'sync', steers: 'forward' }])
  const child = await claimNext(stage.runtime, children[0]?.id ?? '')
  const plain = await spawnChildren(stage.runtime, child, [{ mode: 'sync' }])
  expect(await steer(root, 'k3')).toEqual({ receiverId: child.id })
  await stage.runtime.database.agentJob.update({
    where: { id: plain.children[0]?.id ?? '' },
    data: { steers: 'forward' },
  })
  expect(await steer(root, 'k4')).toEqual({ receiverId: plain.children[0]?.id })
})

test('a steer stays with a job that waits on several sync children: nobody said whose it is', async () => {
  const parent = await claimed()
  const forward = { mode: 'sync', steers: 'forward' } as const
  await spawnChildren(stage.runtime, parent, [forward, forward])
  expect(await steer(parent, 'k5')).toEqual({ receiverId: parent.id })
})

test('a steer to a job that has ended is refused', async () => {
  const parent = await claimed()
  await stage.runtime.database.agentJob.update({ where: { id: parent.id }, data: { state: 'completed' } })
  expect(await steer(parent, 'k6')).toBeNull()
})
