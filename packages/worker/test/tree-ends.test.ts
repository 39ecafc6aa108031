// COST-1: a parent ends by itself, by its time or with its worker, while its sub-agents run in another process. Heartbeats
// are as far apart as in production: whoever waited for one would be late.
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { AgentJob } from '@offshoot/shared/db/agent-jobs'
import { MAX_CRASHES } from '@offshoot/shared/operations/hand-back'
import { childrenOf, endOf, readJob, type SpawnMore, spawnOf, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { type RawScript, says, staysSilent, ticking } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openSystemStage, type SystemStage } from './system-stage.ts'

const LIMIT_MS = 2_000

let stage: SystemStage
beforeAll(async () => {
  stage = await openSystemStage({ WORKER_HEARTBEAT_MS: '5000', WORKER_LOCK_MS: '30000' })
})
afterAll(() => stage.close())

interface Way {
  /** How the parent spawns the one that is running at its end. */
  mode: 'sync' | 'async'
  /** What the parent's model does after its spawns. */
  afterwards: RawScript
  spawn?: SpawnMore
  /** Ends the parent. */
  end(parent: AgentJob): Promise<unknown>
  reason: string
}

const fail = Promise.withResolvers<void>()
const ofItself = async () => undefined

const ways: [how: string, Way][] = [
  [
    'fails',
    {
      mode: 'async',
      async afterwards(reply) {
        await fail.promise
        reply.status(401, { message: 'no' })
      },
      end: async () => fail.resolve(),
      reason: 'model_auth',
    },
  ],
  [
    'runs out of time while it runs',
    { mode: 'async', afterwards: staysSilent, spawn: { timeoutSeconds: 5 }, end: ofItself, reason: 'timeout_total' },
  ],
  [
    'runs out of time while it waits',
    { mode: 'sync', afterwards: staysSilent, spawn: { timeoutSeconds: 5 }, end: ofItself, reason: 'timeout_total' },
  ],
  [
    'is quarantined when it loses its worker',
    {
      mode: 'async',
      afterwards: staysSilent,
      async end({ id }) {
        const worker = await stage.fleet.workerOf(id)
        await stage.runtime.database.agentJob.update({ where: { id }, data: { crashes: MAX_CRASHES - 1 } })
        worker.kill('SIGKILL')
      },
      reason: 'worker_crash',
    },
  ],
]

test.each(ways)('COST-1: a parent that %s takes its sub-agents along within 2 s', async (how, way) => {
  await stage.fleet.replenish()
  const { database, deliveries } = stage.runtime
  const of = (name: string) => `${how}: ${name}`
  const maySpawn = Promise.withResolvers<void>()
  const names = ['quick', 'running', 'queued', 'detached']
  const step: RawScript = async (reply, request) => {
    reply.text('One moment.')
    await maySpawn.promise
    return spawnsAll(names.map(of), way.mode)(reply, request)
  }
  stage.raw.answer(of('parent'), step, way.afterwards)
  for (const name of ['quick', 'detached']) stage.raw.answer(of(name), says('done'))
  for (const name of ['running', 'queued']) stage.raw.answer(of(name), ticking)

  const parent = await spawnRoot(stage, 'bot', of('parent'), way.spawn)
  await untilLiveText(stage, parent.id, 'One moment.')
  // No sub-agent is claimed before its row is as the test needs it.
  await deliveries.lane('default').pause()
  maySpawn.resolve()
  const children = await waitUntil(async () => {
    const found = await childrenOf(stage, parent.id)
    return found.length === names.length && found
  })
  // A sub-agent's time ends with its parent's: here it is only the parent's end that ends the others.
  await database.agentJob.updateMany({
    where: { parentJobId: parent.id },
    data: { deadlineAt: new Date(Date.now() + 3_600_000) },
  })
  const [quick = '', running = '', queued = '', detached = ''] = children.map(({ id }) => id)
  // As a program spawns it.
  await database.agentJob.update({ where: { id: detached }, data: { onParentEnd: 'continue' } })
  await deliveries.lane('default').resume()
  await endOf(stage, quick)
  await untilLiveText(stage, running, 'tick')
  await way.end(parent)

  const parentEnd = await endOf(stage, parent.id)
  expect(parentEnd).toMatchObject({ state: 'failed', reason: way.reason })
  for (const id of [running, queued]) {
    const child = await endOf(stage, id)
    expect(child).toMatchObject({ state: 'aborted', reason: 'aborted_by_parent' })
    expect(Number(child.finishedAt) - Number(parentEnd.finishedAt)).toBeLessThan(LIMIT_MS)
  }
  expect(await readJob(stage, running)).toMatchObject({ result: expect.stringMatching(/^(tick )+$/), partial: true })
  await waitUntil(() => stage.raw.requests(of('running'))[0]?.closedByPeerAt, { within: LIMIT_MS })
  // What had ended stays as it was, and what was spawned to outlive its parent does.
  expect(await readJob(stage, quick)).toMatchObject({ state: 'completed', result: 'done' })
  expect(await endOf(stage, detached)).toMatchObject({ state: 'completed', result: 'done', abortRequestedAt: null })
})

function spawnsAll([quick = '', running = '', queued = '', detached = '']: string[], mode: Way['mode']): RawScript {
  const inBackground = { mode: 'async' }
  return (reply) => {
    reply.call('spawnAgent', spawnOf('bot', quick, inBackground), 'call_0')
    reply.call('spawnAgent', spawnOf('bot', running, { mode }), 'call_1')
    reply.call('spawnAgent', spawnOf('bot', queued, inBackground), 'call_2')
    reply.call('spawnAgent', spawnOf('bot', detached, inBackground), 'call_3')
    reply.finish()
  }
}
