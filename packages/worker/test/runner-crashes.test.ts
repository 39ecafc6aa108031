// SIGKILL of the process that runs a job, under either runner: on the queue another worker goes on; an inline job ends with
// its process, and goes on on the queue when it is retried. Nothing that had finished is made again.
import path from 'node:path'
import type { AgentJob } from '@offshoot/shared/db/agent-jobs'
import { retryAgent } from '@offshoot/shared/operations/retry-agent'
import { answerOf, childrenOf, endOf, eventsOf, readJob, spawnOf, spawnRoot } from '@offshoot/testing/agents'
import { startProcess, type TestProcess } from '@offshoot/testing/processes'
import { callsTool, says, staysSilent } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { openSystemStage, type SystemStage } from './system-stage.ts'

let stage: SystemStage
beforeAll(async () => {
  stage = await openSystemStage()
})
beforeEach(() => stage.fleet.replenish())
afterAll(() => stage.close())

let hosts: TestProcess[] = []
afterEach(async () => {
  await Promise.all(hosts.map((host) => host.stop()))
  hosts = []
})

/** A host without Redis, which runs what it is told inline. */
async function startHost(): Promise<TestProcess> {
  const file = path.join(import.meta.dirname, 'inline-host.ts')
  const host = await startProcess(file, { ...stage.environment, REDIS_URL: '' })
  hosts.push(host)
  return host
}

interface Run {
  jobId: string
  /** Kills the process that runs the job; resolves when it is gone. */
  kill(): Promise<void>
}

async function startOnQueue(message: string): Promise<Run> {
  const { id } = await spawnRoot(stage, 'bot', message)
  return {
    jobId: id,
    async kill() {
      const worker = await stage.fleet.workerOf(id)
      worker.kill('SIGKILL')
      await worker.exited
    },
  }
}

async function startInline(message: string): Promise<Run> {
  const host = await startHost()
  host.send(spawnOf('bot', message))
  const { database } = stage.runtime
  const job = await waitUntil(() => database.agentJob.findFirst({ where: { inputMessage: message } }))
  return {
    jobId: job.id,
    async kill() {
      host.kill('SIGKILL')
      await host.exited
    },
  }
}

/** What the model reads of its calls, in the last request with that message. */
function outputsOf(message: string): unknown[] {
  const { input } = stage.raw.requests(message).at(-1)?.body ?? {}
  const items: { type?: string; output?: string }[] = Array.isArray(input) ? input : []
  return items.filter((item) => item.type === 'function_call_output').map(({ output }) => output)
}

/** What a job has when it is lost. */
interface Kept {
  result: string | null
  steps: number
}

/** On the queue a job goes on by itself. */
async function endOfQueued(jobId: string, _kept: Kept): Promise<AgentJob> {
  await waitUntil(async () => (await readJob(stage, jobId)).attempt === 2)
  return endOf(stage, jobId)
}

/** An inline job ends with its process, and goes on when it is retried. */
async function endOfInline(jobId: string, kept: Kept): Promise<AgentJob> {
  const lost = await endOf(stage, jobId)
  expect(lost).toMatchObject({ state: 'failed', reason: 'worker_lost', partial: true, ...kept })
  expect(lost.error).toBe('The process that ran the job was lost.')
  const answer = await retryAgent(stage.runtime, { userId: 'alice', admin: false }, { jobId }, 'alice')
  expect(answer).toMatchObject({ kind: 'retried', job: { runner: 'queue', workerId: null } })
  return endOf(stage, jobId)
}

describe.each([
  { runner: 'queue', start: startOnQueue, goesOn: endOfQueued },
  { runner: 'inline', start: startInline, goesOn: endOfInline },
])('COST-3: after a SIGKILL of the process of a job on the runner $runner', ({ runner, start, goesOn }) => {
  test('a step that was cut is made again, the one before it is not', async () => {
    const message = `two steps ${runner}`
    const first = (reply: Parameters<typeof staysSilent>[0]) => {
      reply.text('I take a note. ')
      reply.call('note', { text: `between-${runner}` }, 'call_note')
      reply.finish()
    }
    stage.raw.answer(message, first, staysSilent, says('finished elsewhere'))
    const run = await start(message)
    await waitUntil(() => stage.raw.requests(message).length === 2)
    await run.kill()
    const job = await goesOn(run.jobId, { result: 'I take a note. ', steps: 1 })
    expect(job).toMatchObject({
      state: 'completed',
      result: 'finished elsewhere',
      attempt: 2,
      steps: 2,
      inputTokens: 20n,
    })
    expect(await stage.notesOf(`between-${runner}`)).toEqual([`note between-${runner}`])
    expect(stage.raw.requests(message)).toHaveLength(3)
    expect(outputsOf(message)).toEqual([`noted between-${runner}`])
    expect(await answerOf(stage, run.jobId)).toMatchObject([
      { type: 'step-start' },
      { type: 'text', text: 'I take a note. ' },
      { type: 'tool-note', state: 'output-available' },
      { type: 'step-start' },
      { type: 'text', text: 'finished elsewhere' },
    ])
  })

  test('a tool call that had begun is in doubt, a finished one beside it answers from its row', async () => {
    const message = `note and be slow ${runner}`
    stage.raw.answer(
      message,
      (reply) => {
        reply.call('note', { text: `quickly-${runner}` }, 'call_0')
        reply.call('slow', { text: `slowly-${runner}` }, 'call_1')
        reply.finish()
      },
      says('both looked at'),
    )
    const run = await start(message)
    await stage.untilNote(`slow begins slowly-${runner}`)
    await waitUntil(() =>
      stage.runtime.database.agentToolCall.findFirst({ where: { jobId: run.jobId, finishedAt: { not: null } } }),
    )
    await run.kill()
    expect(await goesOn(run.jobId, { result: null, steps: 1 })).toMatchObject({
      state: 'completed',
      result: 'both looked at',
    })
    expect(await stage.notesOf(`quickly-${runner}`)).toEqual([`note quickly-${runner}`])
    expect(await stage.notesOf(`slowly-${runner}`)).toEqual([`slow begins slowly-${runner}`])
    expect(stage.raw.requests(message)).toHaveLength(2)
    expect(outputsOf(message)).toEqual([
      `noted quickly-${runner}`,
      expect.stringContaining('The outcome of this call of slow is unknown: the process that ran it was lost.'),
    ])
  })
})

test('STUCK-7: a host that was killed leaves no inline job open: its successor ends them, with no worker and no Redis', async () => {
  for (const worker of stage.fleet.processes()) await worker.stop()
  stage.raw.answer('plan', (reply) => {
    reply.text('Planning. ')
    reply.call('spawnAgent', spawnOf('bot', 'works'), 'call_a')
    reply.call('spawnAgent', spawnOf('bot', 'works', { mode: 'async' }), 'call_b')
    reply.finish()
  })
  stage.raw.answer('works', callsTool('note', { text: 'worked' }), staysSilent)
  const { jobId, kill } = await startInline('plan')
  // One slot: a child works, the other one has none yet, and their parent waits.
  await waitUntil(() => stage.raw.requests('works').length === 2)
  await kill()
  expect(await readJob(stage, jobId)).toMatchObject({ state: 'running', waitingOn: 'children' })
  await startHost()
  const ends = [await endOf(stage, jobId), ...(await childrenOf(stage, jobId))]
  expect(ends.map(({ state, reason, steps }) => `${state} ${reason} ${steps}`)).toEqual([
    'failed worker_lost 1',
    'failed worker_lost 1',
    'failed worker_lost 0',
  ])
  expect(ends[0]).toMatchObject({ result: 'Planning. ', partial: true })
  expect(await eventsOf(stage, ends[1]?.id ?? '')).toEqual(['spawned', 'worker-lost', 'ended'])
})

test('LOSS-11: a host that is told to end ends its jobs in order, and its process ends by itself', async () => {
  const finish = Promise.withResolvers<void>()
  stage.raw.answer('until then', async (reply) => {
    reply.text('So far. ')
    await finish.promise
    reply.call('note', { text: 'at the end' }, 'call_note')
    reply.finish()
  })
  const host = await startHost()
  host.send(spawnOf('bot', 'until then'))
  await waitUntil(() => stage.raw.requests('until then').length === 1)
  host.kill('SIGTERM')
  const { database } = stage.runtime
  await waitUntil(() => database.worker.findFirst({ where: { pid: host.pid, drainingAt: { not: null } } }))
  finish.resolve()
  expect(await host.exited).toBe(0)
  const outcome = { state: 'aborted', reason: 'aborted_by_shutdown', result: 'So far. ', partial: true, steps: 1 }
  expect(host.told()).toMatchObject([{ ready: true }, { outcome }])
  expect(await stage.notesOf('at the end')).toEqual(['note at the end'])
  expect(await database.worker.count({ where: { pid: host.pid } })).toBe(0)
  expect(host.output()).toBe('')
})
