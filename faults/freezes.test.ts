// A worker that stands still for three times the lock and then goes on: a zombie that does not know yet.
import { createApiKey } from '@offshoot/shared/db/users'
import { endOf, readJob, untilLiveText } from '@offshoot/testing/agents'
import { type FaultStage, openFaultStage } from '@offshoot/testing/fault-stage'
import { startApiProcess, type TestProcess } from '@offshoot/testing/processes'
import { type RawScript, says, stepOf } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { chunksOf, readEvents, type SentEvent, textOf } from '../packages/api/test/event-stream.ts'

let stage: FaultStage
let api: TestProcess
let key: string
beforeAll(async () => {
  stage = await openFaultStage({ workers: 1 })
  api = await startApiProcess(stage.environment)
  key = await createApiKey(stage.runtime.database, 'alice')
})
afterAll(async () => {
  await api.stop()
  await stage.close()
})

async function openStream(jobId: string) {
  return readEvents(
    await fetch(`${api.url}/v1/agents/${jobId}/stream`, { headers: { authorization: `Bearer ${key}` } }),
  )
}

/** All that is stored of a job, and what viewers can still read of it. */
async function recordOf(jobId: string) {
  const { database, liveStreams } = stage.runtime
  const inOrder = { where: { jobId }, orderBy: { id: 'asc' } } as const
  return {
    job: await readJob(stage, jobId),
    steps: await database.agentStep.findMany({ where: { jobId }, orderBy: { index: 'asc' } }),
    toolCalls: await database.agentToolCall.findMany({ where: { jobId }, orderBy: { stepIndex: 'asc' } }),
    // What the zombie had when it came back is kept as late (STATE-14), and changes nothing.
    events: await database.agentEvent.findMany({ ...inOrder, where: { jobId, kind: { not: 'late-result' } } }),
    messages: await database.aiMessage.findMany(inOrder),
    outbox: (await database.outbox.findMany(inOrder)).map(({ key: name, payload }) => ({ name, payload })),
    live: await liveStreams.read(jobId, 0),
  }
}

/** What somebody who followed from the start reads in the end: what an attempt makes anew does not count any more. */
function seenBy(events: readonly SentEvent[]): string {
  let steps: string[] = []
  for (const chunk of chunksOf(events)) {
    if (chunk.type === 'data-attempt') steps = steps.slice(0, (chunk['data'] as { fromStep: number }).fromStep)
    if (chunk.type === 'start-step') steps.push('')
    if (chunk.type === 'text-delta') steps.push(`${steps.pop() ?? ''}${String(chunk['delta'])}`)
  }
  return steps.join('')
}

const TERMINAL = new Set(['finish', 'abort', 'error'])

/** A first step with a tool; in the second one the frozen worker hears `first`, and the one after it "I go on." */
function twoSteps(message: string, first: RawScript): RawScript {
  return (reply, request) => {
    if (stepOf(request) === 0) {
      reply.text('I begin. ')
      reply.call('work', { text: message }, 'call_0')
      return reply.finish()
    }
    if (stepOf(request) === 1 && stage.callsOf(message, 1).length === 1) return first(reply, request)
    return says('I go on.')(reply, request)
  }
}

test('STATE-7: what a worker does after SIGSTOP and SIGCONT changes nothing, and it takes new jobs under a new id', async () => {
  const frozen = Promise.withResolvers<void>()
  const scripts: Record<string, RawScript> = {
    // The rest of the answer comes while nobody reads it, with a call.
    'is answered meanwhile': async (reply) => {
      reply.text('I am the past')
      await frozen.promise
      reply.text(', and I act.')
      reply.call('work', { text: 'by the zombie' }, 'call_1')
      reply.finish()
    },
    'is still being answered': async (reply) => {
      reply.text('I am the past')
      await reply.closed
    },
    'holds in a tool': (reply) => {
      reply.text('I hold. ')
      reply.call('hold', { text: 'the zombie’s tool' }, 'call_1')
      reply.finish()
    },
  }
  const jobs = await Promise.all(
    Object.entries(scripts).map(async ([message, script]) => {
      const [job] = await stage.spawnAgents([message], twoSteps(message, script))
      return job?.id ?? ''
    }),
  )
  const [answered = '', streaming = ''] = jobs
  const viewers = await Promise.all(jobs.map(openStream))
  for (const jobId of [answered, streaming]) await untilLiveText(stage, jobId, 'I am the past')
  await stage.untilNote('begins the zombie’s tool')
  const zombie = await stage.fleet.workerOf(answered)
  const { workerId } = await readJob(stage, answered)
  await stage.fleet.grow()

  zombie.kill('SIGSTOP')
  const thaw = new Promise((resolve) => setTimeout(resolve, 3 * stage.config.WORKER_LOCK_MS))
  frozen.resolve()
  await stage.release('the zombie’s tool')
  for (const jobId of jobs)
    expect(await endOf(stage, jobId)).toMatchObject({ state: 'completed', result: 'I go on.', attempt: 2, crashes: 0 })
  await thaw
  const before = await Promise.all(jobs.map(recordOf))
  expect(before.map(({ steps }) => steps.length)).toEqual([2, 2, 3])

  const [connection] = stage.callsOf('is still being answered', 1)
  expect(connection?.closedByPeerAt).toBeUndefined()
  zombie.kill('SIGCONT')
  const goesOnAt = performance.now()
  const closedAt = await waitUntil(() => connection?.closedByPeerAt)
  expect(closedAt - goesOnAt).toBeLessThan(stage.config.WORKER_HEARTBEAT_MS)

  // It works on, under a new id: with the other one gone it is the only worker.
  for (const other of stage.fleet.others(zombie)) await other.stop()
  const later = await stage.spawnAgents(['still there?', 'and you?'], says('Yes.'))
  for (const { id } of later) {
    const job = await endOf(stage, id)
    expect(job).toMatchObject({ state: 'completed', result: 'Yes.', attempt: 1 })
    expect(job.workerId).not.toBe(workerId)
    expect(await stage.fleet.workerOf(id)).toBe(zombie)
  }

  expect(await Promise.all(jobs.map(recordOf))).toEqual(before)
  expect(await stage.countNotes('begins by the zombie')).toBe(0)
  for (const message of Object.keys(scripts)) expect(await stage.countNotes(`begins ${message}`)).toBe(1)
  const said = ['I begin. I go on.', 'I begin. I go on.', 'I begin. I hold. I go on.']
  for (const [at, viewer] of viewers.entries()) {
    const events = await viewer.rest()
    expect(seenBy(events)).toBe(said[at])
    expect(chunksOf(events).filter(({ type }) => TERMINAL.has(type))).toMatchObject([{ type: 'finish' }])
    // Who comes later reads it once, without having to take anything back.
    const whole = await (await openStream(jobs[at] ?? '')).rest()
    expect(textOf(whole)).toBe(said[at])
    expect(chunksOf(whole).filter(({ type }) => TERMINAL.has(type))).toMatchObject([{ type: 'finish' }])
  }
  expect(stage.model.requests('is answered meanwhile')).toHaveLength(3)
})
