// Every worker is gone, and no client is connected: only an API's reconciler is there.
import { childrenOf, endOf, eventsOf, readJob, spawnOf, untilLiveText } from '@offshoot/testing/agents'
import { type FaultStage, openFaultStage } from '@offshoot/testing/fault-stage'
import { startApiProcess, type TestProcess } from '@offshoot/testing/processes'
import { callsTool, type RawScript, says, stepOf } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'

/** What the reconciler may take after a deadline. */
const ENDS_WITHIN_MS = 2_000
const DEADLINE_SECONDS = 6

let stage: FaultStage
let api: TestProcess
beforeAll(async () => {
  stage = await openFaultStage({ workers: 2 })
  api = await startApiProcess(stage.environment)
})
afterAll(async () => {
  await api.stop()
  await stage.close()
})

/** A step with a tool, then one that does not end before `released`. */
function twoSteps(message: string, released: Promise<void>): RawScript {
  return async (reply, request) => {
    if (stepOf(request) === 0) {
      reply.text('I begin.')
      reply.call('work', { text: message }, 'call_0')
      return reply.finish()
    }
    reply.text('I go on.')
    await released
    return reply.finish()
  }
}

test('STUCK-7, LOSS-6: with every worker killed a job ends by its deadline, and one with time left goes on when a worker comes', async () => {
  const released = Promise.withResolvers<void>()
  const [late] = await stage.spawnAgents(['lasts'], twoSteps('lasts', released.promise))
  // A parent that waits for a child whose time is over first.
  stage.model.answer('runs out of time', twoSteps('runs out of time', released.promise))
  const spawnChild = callsTool('spawnAgent', spawnOf('agent', 'runs out of time', { timeoutSeconds: DEADLINE_SECONDS }))
  const [parent] = await stage.spawnAgents(['asks a child'], (reply, request) =>
    (stepOf(request) === 0 ? spawnChild : says('It had no time.'))(reply, request),
  )
  const lasts = late?.id ?? ''
  const asks = parent?.id ?? ''
  const child = await waitUntil(async () => (await childrenOf(stage, asks))[0])
  for (const jobId of [lasts, child.id]) await untilLiveText(stage, jobId, 'I go on.')
  for (const worker of stage.fleet.processes()) worker.kill('SIGKILL')
  await waitUntil(() => stage.fleet.processes().length === 0)
  expect(await readJob(stage, child.id)).toMatchObject({ state: 'running', attempt: 1 })

  const ended = await endOf(stage, child.id)
  expect(ended).toMatchObject({ state: 'failed', reason: 'timeout_total', result: 'I begin.', partial: true, steps: 1 })
  const lateMs = (ended.finishedAt?.getTime() ?? 0) - ended.deadlineAt.getTime()
  expect(lateMs).toBeGreaterThanOrEqual(0)
  expect(lateMs).toBeLessThan(ENDS_WITHIN_MS)
  expect(await eventsOf(stage, child.id)).toEqual(['spawned', 'worker-lost', 'ended'])
  // The others wait for a worker, and say so.
  expect(await readJob(stage, lasts)).toMatchObject({ state: 'pending', attempt: 1, claimToken: null })
  expect(await readJob(stage, asks)).toMatchObject({ state: 'pending', attempt: 1, claimToken: null })

  released.resolve()
  await stage.fleet.replenish()
  expect(await endOf(stage, lasts)).toMatchObject({ state: 'completed', result: 'I go on.', attempt: 2, crashes: 0 })
  expect(await endOf(stage, asks)).toMatchObject({ state: 'completed', result: 'It had no time.', attempt: 2 })
  expect(JSON.stringify(stage.callsOf('asks a child', 1)[0]?.body)).toContain(String.raw`\"reason\":\"timeout_total\"`)
  for (const message of ['lasts', 'runs out of time']) {
    expect(stage.callsOf(message, 0)).toHaveLength(1)
    expect(await stage.countNotes(`begins ${message}`)).toBe(1)
  }
  // One call was cut; that of the child was never made again.
  expect(stage.callsOf('lasts', 1)).toHaveLength(2)
  expect(stage.callsOf('runs out of time', 1)).toHaveLength(1)
  expect(api.output()).toBe('')
})
