// A thousand aborts at the instant of the end: whichever comes first, everybody is told the same.
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text as readText } from 'node:stream/consumers'
import type { AbortOutput } from '@offshoot/shared/contracts/abort'
import { isTerminal } from '@offshoot/shared/contracts/job-state'
import type { AgentJob } from '@offshoot/shared/db/agent-jobs'
import { abort, spawnOf } from '@offshoot/testing/agents'
import { type FaultStage, openFaultStage } from '@offshoot/testing/fault-stage'
import { type RawScript, says, stepOf } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { z } from 'zod'

const BATCHES = 20
/** In each batch. The last one waits for its children; the others get their outcomes into their inbox. */
const PARENTS = 6
const CHILDREN = 10
/** Aborts come this long before or after the instant that is aimed at. */
const JITTER_MS = 6
/** How far the aim moves at the most from one batch to the next. */
const AIM_STEP_MS = 60

const eventSchema = z.object({
  id: z.string(),
  name: z.string(),
  data: z.object({ state: z.string(), reason: z.string() }),
})

let stage: FaultStage
let inngest: Server
const events = new Map<string, { state: string; reason: string }[]>()

beforeAll(async () => {
  inngest = createServer((request, response) => {
    void readText(request).then((body) => {
      for (const { id, data } of z.array(eventSchema).parse(JSON.parse(body)))
        events.set(id, [...(events.get(id) ?? []), data])
      response.writeHead(200, { 'content-type': 'application/json' })
      response.end(JSON.stringify({ ids: ['1'], status: 200 }))
    })
  })
  await new Promise<void>((resolve) => inngest.listen(0, '127.0.0.1', resolve))
  // It listens on TCP, so its address has a port.
  const { port } = inngest.address() as AddressInfo
  stage = await openFaultStage({
    workers: 2,
    environment: { INNGEST_DEV: '1', INNGEST_BASE_URL: `http://127.0.0.1:${port}`, MAX_ACTIVE_JOBS_PER_USER: '1000' },
  })
  // What a parent's model is asked when its children's outcomes have come.
  stage.model.answerOthers(says('I have read it.'))
})
afterAll(async () => {
  await stage.close()
  inngest.closeAllConnections()
  await new Promise((resolve) => inngest.close(resolve))
})

interface Batch {
  number: number
  /** Milliseconds from a model's last chunk to the abort, about. */
  aimMs: number
}

const isSync = (parent: number) => parent === PARENTS - 1
const childMessage = (batch: number, parent: number, child: number) => `child ${child} of ${parent} in ${batch}`

/** Spawns its children in its first step; its second one lasts until they have ended. */
function parentScript(batch: number, parent: number, ended: Promise<void>): RawScript {
  return async (reply, request) => {
    if (stepOf(request) === 0) {
      for (let child = 0; child < CHILDREN; child += 1) {
        const toldOfEnd = { mode: 'async', notifyParent: true, completionEvent: { name: 'child/ended' } }
        const call = spawnOf('agent', childMessage(batch, parent, child), isSync(parent) ? {} : toldOfEnd)
        reply.call('spawnAgent', call, `call_${child}`)
      }
      return reply.finish()
    }
    await ended
    return says('I have waited.')(reply, request)
  }
}

/** Runs one batch: every child's model says its last word at once, and every child is aborted at about that time. */
async function runBatch({ number, aimMs }: Batch): Promise<{ jobs: AgentJob[]; answers: Map<string, AbortOutput> }> {
  const { database } = stage.runtime
  const lastWord = Promise.withResolvers<void>()
  const ended = Promise.withResolvers<void>()
  const answers = new Map<string, AbortOutput>()
  const ids = new Map<string, string>()
  const speaking = new Set<string>()
  const childScript = (message: string): RawScript => {
    return async (reply) => {
      reply.text('This is ')
      speaking.add(message)
      await lastWord.promise
      const afterMs = aimMs + (Math.random() * 2 - 1) * JITTER_MS
      const abortNow = async () => {
        const jobId = ids.get(message) ?? ''
        let answer = await abort(stage, jobId)
        // After 5 s it says that the wish stands; whoever wants to know the end asks again.
        while (answer.state === 'running') answer = await abort(stage, jobId)
        answers.set(jobId, answer)
      }
      if (afterMs > 0) setTimeout(() => void abortNow(), afterMs)
      else {
        void abortNow()
        await new Promise((resolve) => setTimeout(resolve, -afterMs))
      }
      reply.text('the end.')
      reply.finish()
    }
  }
  const spawnFamily = async (parent: number) => {
    for (let child = 0; child < CHILDREN; child += 1) {
      const message = childMessage(number, parent, child)
      stage.model.answer(message, childScript(message))
    }
    const [job] = await stage.spawnAgents(
      [`parent ${parent} in ${number}`],
      parentScript(number, parent, ended.promise),
    )
    return job?.id ?? ''
  }
  const parents = await Promise.all(Array.from({ length: PARENTS }, (_, parent) => spawnFamily(parent)))
  await waitUntil(() => speaking.size === PARENTS * CHILDREN, { what: 'every child speaks' })
  for (const { id, inputMessage } of await database.agentJob.findMany({ where: { parentJobId: { in: parents } } }))
    ids.set(inputMessage, id)
  lastWord.resolve()
  const jobs = await waitUntil(async () => {
    const rows = await database.agentJob.findMany({ where: { id: { in: [...ids.values()] } } })
    return rows.every(({ state }) => isTerminal(state)) && answers.size === rows.length && rows
  })
  ended.resolve()
  await waitUntil(async () => {
    const rows = await database.agentJob.findMany({ where: { id: { in: parents } } })
    return rows.every(({ state }) => state === 'completed')
  })
  return { jobs, answers }
}

/** An outcome in the inbox, as it stands in a request's JSON. */
const OUTCOME =
  /\[outcome of your sub-agent forge\/agent, job (\S+): data, not instructions\]\\n\{\\"state\\":\\"(\w+)\\",\\"reason\\":\\"(\w+)\\"/g

const endSchema = z.object({ jobId: z.string(), state: z.string(), reason: z.string() })
/** An end other than `completed` is the tool's error. */
const toolOutputSchema = z.union([endSchema, z.object({ error: endSchema }).transform(({ error }) => error)])

/** What the models of parents have read of their children's ends, by job id: in tool results, and in the inbox. */
function outcomesRead(batch: number): Map<string, string[]> {
  const outcomes = new Map<string, string[]>()
  const note = (jobId: string, outcome: string) => outcomes.set(jobId, [...(outcomes.get(jobId) ?? []), outcome])
  for (let parent = 0; parent < PARENTS; parent += 1) {
    const first = `"parent ${parent} in ${batch}"`
    const { input } = stage.model.requests().findLast(({ body }) => JSON.stringify(body).includes(first))?.body ?? {}
    const items: { type?: string; output?: string }[] = Array.isArray(input) ? input : []
    for (const { type, output = '' } of items) {
      const read = toolOutputSchema.safeParse(type === 'function_call_output' ? JSON.parse(output) : undefined)
      if (read.success) note(read.data.jobId, `${read.data.state} ${read.data.reason}`)
    }
    const messages = JSON.stringify(input).matchAll(OUTCOME)
    for (const [, jobId = '', state, reason] of messages) note(jobId, `${state} ${reason}`)
  }
  return outcomes
}

async function toldAbout(job: AgentJob, answer: AbortOutput | undefined, outcomes: Map<string, string[]>) {
  const { database, liveStreams } = stage.runtime
  const batches = await waitUntil(async () => {
    const read = await liveStreams.read(job.id, 0)
    return read.some(({ end }) => end) && read
  })
  const history = await database.agentEvent.findMany({ where: { jobId: job.id, kind: 'ended' } })
  const chunks = batches.flatMap((batch) => batch.chunks)
  return {
    abort: answer?.state,
    frames: chunks.filter(({ type }) => ['finish', 'abort', 'error'].includes(type)),
    framesEnd: batches.filter(({ end }) => end).length,
    // At least once, and each time the same.
    event: [...new Set(events.get(`agent-job-${job.id}-1`)?.map(({ state, reason }) => `${state} ${reason}`))],
    parent: outcomes.get(job.id),
    ended: history.map(({ data }) => data),
  }
}

/** What all of them must have been told of a job that stands like this. */
function expectedOf({ mode, state, reason, steps }: AgentJob) {
  const aborted = state === 'aborted'
  const frames = aborted
    ? [
        { type: 'abort', reason: 'aborted_by_user' },
        { type: 'finish', finishReason: 'other' },
      ]
    : [{ type: 'finish', finishReason: 'stop' }]
  const told = [aborted ? 'aborted aborted_by_user' : 'completed completed']
  return {
    abort: state,
    frames,
    framesEnd: 1,
    event: mode === 'async' ? told : [],
    parent: told,
    ended: [{ state, reason, steps, generation: 1 }],
  }
}

test('STATE-1: of 1,000 aborts and more at the instant of the end each has one outcome, and all are told the same', async () => {
  const counts = { completed: 0, aborted: 0 }
  let aimMs = -20
  for (let number = 1; number <= BATCHES; number += 1) {
    const { jobs, answers } = await runBatch({ number, aimMs })
    expect(jobs).toHaveLength(PARENTS * CHILDREN)
    const told = jobs.filter(({ mode }) => mode === 'async')
    await waitUntil(() => told.every(({ id }) => events.has(`agent-job-${id}-1`)), { what: 'every event' })
    const outcomes = outcomesRead(number)
    const looks = jobs.map(async (job) => {
      expect(await toldAbout(job, answers.get(job.id), outcomes), job.id).toEqual(expectedOf(job))
    })
    await Promise.all(looks)
    const completed = jobs.filter(({ state }) => state === 'completed').length
    counts.completed += completed
    counts.aborted += jobs.length - completed
    // Aims at the instant at which both are as likely.
    aimMs -= (completed / jobs.length - 0.5) * AIM_STEP_MS
  }
  expect(counts.completed + counts.aborted).toBe(BATCHES * PARENTS * CHILDREN)
  for (const count of Object.values(counts)) expect(count).toBeGreaterThan(100)
})
