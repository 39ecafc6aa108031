// A deploy: three workers are told to end, one after the other, and replaced, under a steady load of twenty agents.
import type { AgentJob } from '@offshoot/shared/db/agent-jobs'
import { eventsOf, readJob, runRoot } from '@offshoot/testing/agents'
import { type FaultStage, openFaultStage } from '@offshoot/testing/fault-stage'
import type { TestProcess } from '@offshoot/testing/processes'
import { type RawScript, stepOf } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'

const WORKERS = 3
const AGENTS = 20
const STEPS = 4
const STEP_MS = 400
/** Beyond the step that was under way. */
const NEXT_WORKER_WITHIN_MS = 2_000

let stage: FaultStage
beforeAll(async () => {
  stage = await openFaultStage({ workers: WORKERS })
})
afterAll(() => stage.close())

/** `lateByMs` is how much longer its first step takes. */
function scriptOf(message: string, lateByMs: number): RawScript {
  return async (reply, request) => {
    const step = stepOf(request)
    reply.text('I think ')
    await new Promise((resolve) => setTimeout(resolve, STEP_MS + (step === 0 ? lateByMs : 0)))
    reply.text('so.')
    if (step < STEPS - 1) reply.call('work', { text: `${message}, step ${step}` }, `call_${step}`)
    reply.finish()
  }
}

/**
 * Twenty agents at a time: as soon as one has ended the next one begins. The first ones take longer, each by another
 * twentieth of a run, so that the load is steady: of agents in step with each other a restart could meet all in their last
 * one, which ends where it began.
 */
function startLoad() {
  const ended: AgentJob[] = []
  const stopping = new AbortController()
  const keepOneRunning = async (slot: number) => {
    for (let turn = 1; !stopping.signal.aborted; turn += 1) {
      const message = `agent ${slot}, turn ${turn}`
      stage.model.answer(message, scriptOf(message, turn === 1 ? (slot * STEPS * STEP_MS) / AGENTS : 0))
      ended.push(await runRoot(stage, 'agent', message))
    }
  }
  const running = Promise.all(Array.from({ length: AGENTS }, (_, slot) => keepOneRunning(slot)))
  return {
    ended,
    async stop() {
      stopping.abort()
      await running
    },
  }
}

async function heldBy(worker: TestProcess): Promise<AgentJob[]> {
  const { database } = stage.runtime
  const { id: workerId } = await database.worker.findFirstOrThrow({ where: { pid: worker.pid } })
  return database.agentJob.findMany({ where: { workerId, state: 'running' } })
}

/** Milliseconds from now until the last of these jobs has another worker, or has ended. */
async function untilElsewhere(jobs: readonly AgentJob[]): Promise<number> {
  const before = performance.now()
  for (const { id, attempt } of jobs) {
    await waitUntil(async () => {
      const job = await readJob(stage, id)
      return job.attempt > attempt || job.finishedAt !== null
    })
  }
  return performance.now() - before
}

test('LOSS-11, COST-3: a rolling restart under load fails no agent, repeats nothing and leaves nothing behind', async () => {
  const load = startLoad()
  await waitUntil(() => load.ended.length >= AGENTS)
  let held = 0
  for (const worker of stage.fleet.processes()) {
    const jobs = await heldBy(worker)
    expect(jobs.length).toBeGreaterThan(0)
    worker.kill('SIGTERM')
    expect(await untilElsewhere(jobs)).toBeLessThan(STEP_MS + NEXT_WORKER_WITHIN_MS)
    expect(await worker.exited).toBe(0)
    expect(worker.output()).toBe('')
    await stage.fleet.replenish()
    held += jobs.length
  }
  const endedBefore = load.ended.length
  await waitUntil(() => load.ended.length >= endedBefore + AGENTS)
  await load.stop()
  expect(held).toBeGreaterThanOrEqual(AGENTS / 2)
  expect(load.ended.filter(({ attempt }) => attempt > 1).length).toBeGreaterThanOrEqual(held / 2)

  const { database, deliveries } = stage.runtime
  const queue = deliveries.lane('default')
  // A delivery without a worker would stay active until BullMQ's stall check, half a minute later.
  await waitUntil(async () => (await queue.getActiveCount()) === 0, { within: 1_000, what: 'no active delivery' })
  expect(await database.worker.count()).toBe(WORKERS)
  const wrong: string[] = []
  for (const { id, inputMessage: message, state, steps, result, crashes } of load.ended) {
    expect({ state, steps, result, crashes }).toEqual({
      state: 'completed',
      steps: STEPS,
      result: 'I think so.',
      crashes: 0,
    })
    expect((await eventsOf(stage, id)).filter((kind) => kind !== 'handed-back')).toEqual(['spawned', 'ended'])
    for (let step = 0; step < STEPS; step += 1) {
      const text = `${message}, step ${step}`
      const calls = stage.callsOf(message, step).length
      if (calls !== 1) wrong.push(`${text}: ${calls} model calls`)
      const runs = await stage.countNotes(`begins ${text}`)
      if (step < STEPS - 1 && runs !== 1) wrong.push(`${text}: its tool ran ${runs} times`)
    }
  }
  expect(wrong).toEqual([])
})
