// Jobs with which workers were lost again and again: one of them at a time runs in a process.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { abort, endOf, eventsOf, readJob, spawnRoot } from '@offshoot/testing/agents'
import { callsTool, type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl)
  await stage.putBot('bot')
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

/** Spawns jobs with which workers were lost that often, and lets them be delivered all at once. */
async function spawnSuspects(messages: readonly string[], crashes: number): Promise<string[]> {
  const queue = stage.runtime.deliveries.lane('default')
  await queue.pause()
  const ids: string[] = []
  for (const message of messages) ids.push((await spawnRoot(stage, 'bot', message)).id)
  await stage.runtime.database.agentJob.updateMany({ where: { id: { in: ids } }, data: { crashes } })
  await queue.resume()
  return ids
}

async function untilWaiting(jobId: string) {
  return waitUntil(async () => {
    const job = await readJob(stage, jobId)
    return job.waitingOn === 'retry' && job
  })
}

test('STUCK-18: of two jobs that lost two workers each the second waits, without a slot, until the first has stored a step', async () => {
  const stored = Promise.withResolvers<void>()
  const ended = Promise.withResolvers<void>()
  for (const message of ['suspect 1', 'suspect 2']) {
    raw.answer(
      message,
      async (reply, request) => {
        await stored.promise
        await callsTool('checkAgent', { jobId: 'nothing' })(reply, request)
      },
      async (reply) => {
        await ended.promise
        reply.text('not guilty')
        reply.finish()
      },
    )
  }
  raw.answer('bystander', says('seen nothing'))
  const ids = await spawnSuspects(['suspect 1', 'suspect 2'], 2)
  const waiting = await Promise.race(ids.map(untilWaiting))
  expect(waiting).toMatchObject({ state: 'running', claimToken: null, workerId: null, stepRetries: 0, crashes: 2 })
  const runs = ids.find((id) => id !== waiting.id) ?? ''
  expect(raw.requests()).toHaveLength(1)
  // Who lost fewer is no suspect, and need not wait.
  expect(await endOf(stage, (await spawnSuspects(['bystander'], 1))[0] ?? '')).toMatchObject({ state: 'completed' })

  stored.resolve()
  // The first one's second step is still under way when the other one's turn has come.
  await waitUntil(async () => (await readJob(stage, waiting.id)).steps === 1)
  expect(await readJob(stage, runs)).toMatchObject({ state: 'running', steps: 1, crashes: 0 })
  ended.resolve()
  for (const id of ids) expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'not guilty' })
  expect(new Set(await eventsOf(stage, waiting.id))).toEqual(new Set(['spawned', 'waiting', 'woken', 'ended']))
  expect(await eventsOf(stage, runs)).toEqual(['spawned', 'ended'])
})

test('a suspect that waits for its turn can be aborted, and the next one comes when a turn has ended', async () => {
  const ended = Promise.withResolvers<void>()
  for (const message of ['long 1', 'long 2', 'long 3']) {
    raw.answer(message, async (reply) => {
      await ended.promise
      reply.text('over')
      reply.finish()
    })
  }
  const ids = await spawnSuspects(['long 1', 'long 2', 'long 3'], 4)
  const { id: aborted } = await Promise.race(ids.map(untilWaiting))
  expect(await abort(stage, aborted)).toMatchObject({ state: 'aborted' })
  ended.resolve()
  for (const id of ids.filter((each) => each !== aborted))
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'over' })
})
