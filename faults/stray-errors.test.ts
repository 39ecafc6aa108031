// Errors that reach nobody: a tool leaves a rejection or an exception behind, outside of what its caller awaits.
import { endOf, eventsOf, readJob } from '@offshoot/testing/agents'
import { type FaultStage, openFaultStage } from '@offshoot/testing/fault-stage'
import { type RawScript, says, stepOf } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'

let stage: FaultStage
beforeAll(async () => {
  stage = await openFaultStage({ workers: 2 })
})
afterAll(() => stage.close())

test.for(['rejectAside', 'throwAside'])(
  'STUCK-19: %s in a tool ends the worker with exit code 1, never leaves it idle, and its jobs go on elsewhere',
  async (tool) => {
    await stage.fleet.replenish()
    const released = Promise.withResolvers<void>()
    const script: RawScript = async (reply, request) => {
      if (stepOf(request) > 0) return says('I go on.')(reply, request)
      await released.promise
      reply.call('work', { text: `beside ${tool}` }, 'call_0')
      return reply.finish()
    }
    // Many enough that some run in the process that ends.
    const messages = Array.from({ length: 12 }, (_, at) => `beside ${tool} ${at}`)
    const others = await stage.spawnAgents(messages, script)
    await waitUntil(() => messages.every((message) => stage.callsOf(message, 0).length === 1))
    const [job] = await stage.spawnAgents([`does ${tool}`], (reply, request) => {
      if (stepOf(request) > 0) return says('I was told.')(reply, request)
      reply.call(tool, { text: tool }, 'call_0')
      return reply.finish()
    })
    const { id } = job ?? { id: '' }
    const worker = await stage.fleet.workerOf(id)
    const { workerId } = await readJob(stage, id)
    expect(await worker.exited).toBe(1)
    expect(worker.output()).toContain('uncaught error; the process ends')
    released.resolve()
    const beside = await stage.runtime.database.agentJob.count({ where: { workerId } })
    expect(beside).toBeGreaterThan(1)

    // The cut call was reported as unknown, so it did not end the next one, too.
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'I was told.', attempt: 2, steps: 2 })
    expect(await eventsOf(stage, id)).toEqual(['spawned', 'worker-lost', 'ended'])
    for (const other of others)
      expect(await endOf(stage, other.id)).toMatchObject({ state: 'completed', result: 'I go on.', steps: 2 })
    expect(await stage.countNotes(`begins ${tool}`)).toBe(1)
  },
)
