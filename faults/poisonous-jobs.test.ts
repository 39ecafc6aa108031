// A job whose tool ends the process it runs in, again and again. Its workers are started again each time.
import { endOf, eventsOf } from '@offshoot/testing/agents'
import { type FaultStage, openFaultStage } from '@offshoot/testing/fault-stage'
import { callsTool, type RawScript, stepOf } from '@offshoot/testing/raw-model'
import { afterAll, beforeAll, expect, test } from 'vitest'

const MAX_CRASHES = 5

let stage: FaultStage
beforeAll(async () => {
  stage = await openFaultStage({ workers: 2 })
  stage.fleet.restart()
})
afterAll(() => stage.close())

/** Two steps of that length, the first of them with a tool. */
function twoSteps(message: string, stepMs: number): RawScript {
  return async (reply, request) => {
    reply.text('I think ')
    await new Promise((resolve) => setTimeout(resolve, stepMs))
    reply.text('so.')
    if (stepOf(request) === 0) reply.call('workAgain', { text: message }, 'call_0')
    reply.finish()
  }
}

test('STUCK-18: a job that kills its worker is quarantined after five crashes, and the others on the fleet complete', async () => {
  // Their steps are shorter than a worker lives here, or longer.
  const messages = Array.from({ length: 6 }, (_, at) => ({
    message: `agent ${at}`,
    stepMs: at % 3 === 0 ? 2_500 : 300,
  }))
  const others = await Promise.all(
    messages.map(({ message, stepMs }) => stage.spawnAgents([message], twoSteps(message, stepMs))),
  )
  const [poison] = await stage.spawnAgents(['poison'], callsTool('die', { text: 'poison' }, 'call_0'))
  const ended = await endOf(stage, poison?.id ?? '', 60_000)
  expect(ended).toMatchObject({ state: 'failed', reason: 'worker_crash', crashes: MAX_CRASHES, steps: 1 })
  // Its model call was stored before the first crash.
  expect(stage.callsOf('poison', 0)).toHaveLength(1)
  expect(await stage.countNotes('begins poison')).toBe(MAX_CRASHES)
  expect((await eventsOf(stage, ended.id)).filter((kind) => kind === 'worker-lost')).toHaveLength(MAX_CRASHES)
  for (const { id, inputMessage } of others.flat()) {
    const end = { state: 'completed', result: 'I think so.', steps: 2 }
    expect(await endOf(stage, id, 60_000), inputMessage).toMatchObject(end)
  }
})
