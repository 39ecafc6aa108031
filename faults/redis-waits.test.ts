// A parent waits for its child, and what should bring the child or the wake is taken away.
import { childrenOf, endOf, eventsOf, readJob, spawnOf, spawnRoot } from '@offshoot/testing/agents'
import { startApiProcess } from '@offshoot/testing/processes'
import { callsTool, says } from '@offshoot/testing/raw-model'
import { openServiceStage, type ServiceStage } from '@offshoot/testing/service-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'

let stage: ServiceStage

beforeAll(async () => {
  stage = await openServiceStage({ workers: 1 })
})
afterAll(() => stage.close())

/** A parent that waits for a child, which answers when the test lets it. */
async function waitingParent(name: string, more: { timeoutSeconds?: number; queued?: boolean } = {}) {
  const { raw, runtime } = stage
  const [spawns, answers] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  raw.answer(
    `parent, ${name}`,
    async (reply, request) => {
      await spawns.promise
      await callsTool('spawnAgent', spawnOf('bot', `child, ${name}`))(reply, request)
    },
    says('woken'),
  )
  raw.answer(`child, ${name}`, async (reply) => {
    await answers.promise
    reply.text('here')
    reply.finish()
  })
  const { queued = false, ...spawn } = more
  const parent = await spawnRoot(stage, 'bot', `parent, ${name}`, spawn)
  await waitUntil(() => raw.requests(`parent, ${name}`).length === 1)
  // In a queue that is paused the child's delivery stays where it is.
  if (queued) await runtime.deliveries.lane('default').pause()
  spawns.resolve()
  const child = await waitUntil(async () => (await childrenOf(stage, parent.id))[0])
  if (queued) await waitUntil(() => runtime.deliveries.lane('default').getJob(`${child.id}-1`))
  else await waitUntil(() => raw.requests(`child, ${name}`).length === 1)
  expect(await readJob(stage, parent.id)).toMatchObject({ state: 'running', waitingOn: 'children' })
  return { parent, child, answer: () => answers.resolve() }
}

async function expectResumed(name: string, parentId: string): Promise<void> {
  expect(await endOf(stage, parentId, 25_000)).toMatchObject({ state: 'completed', result: 'woken' })
  expect(stage.raw.requests(`parent, ${name}`)).toHaveLength(2)
  expect(stage.raw.requests(`child, ${name}`)).toHaveLength(1)
}

test('STUCK-3, STUCK-2: a parent resumes although its child’s delivery was removed', async () => {
  const { parent, child, answer } = await waitingParent('removed', { queued: true })
  const lane = stage.runtime.deliveries.lane('default')
  expect(await lane.remove(`${child.id}-1`)).toBe(1)
  await lane.resume()
  answer()
  await expectResumed('removed', parent.id)
  expect(await eventsOf(stage, child.id)).toEqual(['spawned', 'redelivered', 'ended'])
})

test('STUCK-3, STUCK-2: parents of a running and of a queued child resume although the queue was obliterated', async () => {
  const running = await waitingParent('obliterated, running')
  const queued = await waitingParent('obliterated, queued', { queued: true })
  await stage.runtime.deliveries.lane('default').obliterate({ force: true })
  running.answer()
  queued.answer()
  await expectResumed('obliterated, running', running.parent.id)
  await expectResumed('obliterated, queued', queued.parent.id)
  expect(await stage.restarts()).toEqual([])
})

test('STUCK-3: a parent resumes although the API was killed and started again', async () => {
  const { parent, answer } = await waitingParent('API restarted')
  const api = await startApiProcess(stage.environment)
  api.kill('SIGKILL')
  await api.exited
  const again = await startApiProcess(stage.environment)
  answer()
  await expectResumed('API restarted', parent.id)
  expect(await eventsOf(stage, parent.id)).toEqual(['spawned', 'waiting', 'woken', 'ended'])
  await again.stop()
})

test('STUCK-3: parents whose sub-agents never end do so by their deadline, whatever became of deliveries and of the API', async () => {
  const limited = { timeoutSeconds: 5 }
  const lane = stage.runtime.deliveries.lane('default')
  const parents = [
    await waitingParent('for ever, running', limited),
    await waitingParent('for ever, queued', { ...limited, queued: true }),
  ]
  // The queue is paused since then.
  expect(await lane.remove(`${parents[1]?.child.id}-1`)).toBe(1)
  const api = await startApiProcess(stage.environment)
  api.kill('SIGKILL')
  await lane.obliterate({ force: true })
  await api.exited
  const again = await startApiProcess(stage.environment)
  for (const { parent } of parents) {
    const ended = await endOf(stage, parent.id)
    expect(ended).toMatchObject({ state: 'failed', reason: 'timeout_total' })
    expect(Number(ended.finishedAt) - Number(ended.deadlineAt)).toBeLessThan(2_000)
    const answer = await stage.api.fetch('alice', `/v1/agents/${parent.id}`)
    expect(await answer.json()).toMatchObject({ state: 'failed', reason: 'timeout_total' })
  }
  for (const { answer } of parents) answer()
  await again.stop()
})

test('STUCK-3: with Redis gone a waiting parent ends by its deadline, and its state says so', async () => {
  const { parent, child } = await waitingParent('Redis gone', { timeoutSeconds: 3 })
  await stage.redis.shutDown()
  expect(await endOf(stage, parent.id)).toMatchObject({ state: 'failed', reason: 'timeout_total' })
  // A child has its parent's deadline; which of the two is seen first is open.
  const { reason } = await endOf(stage, child.id)
  expect(['timeout_total', 'aborted_by_parent']).toContain(reason)
  const answer = await stage.api.fetch('alice', `/v1/agents/${parent.id}`)
  expect(await answer.json()).toMatchObject({ state: 'failed', reason: 'timeout_total' })
  await stage.redis.start()
})
