// A thousand aborts at the instant of the end: whichever comes first, everybody is told the same.
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text as readText } from 'node:stream/consumers'
import type { AbortOutput } from '@offshoot/shared/contracts/abort'
import { isTerminal } from '@offshoot/shared/contracts/job-state'
import type { AgentJob } from '@offshoot/shared/db/agent-jobs'
import { abort, openConvo, spawnOf, startTurnOf } from '@offshoot/testing/agents'
import { type FaultStage, openFaultStage } from '@offshoot/testing/fault-stage'
import { type RawScript, says, stepOf } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { z } from 'zod'

const WITH_PARENTS = { batches: 20, least: 100 }
/** In each batch. The last one waits for its children; the others get their outcomes into their inbox. */
const PARENTS = 6
const CHILDREN = 10
/** Jobs that nobody waits for: roots, whose ends are written many at a time, and turns of chats. */
const ALONE = { batches: 6, least: 50 }
const ROOTS = 50
const TURNS = 10
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

/** Jobs whose models say their last word at once, and that are aborted at about that time. */
interface Race {
  aimMs: number
  lastWord: PromiseWithResolvers<void>
  /** Job ids by message. */
  ids: Map<string, string>
  /** The messages whose models wait to say their last word. */
  speaking: Set<string>
  /** By job id. */
  answers: Map<string, AbortOutput>
}

function openRace(aimMs: number): Race {
  return { aimMs, lastWord: Promise.withResolvers(), ids: new Map(), speaking: new Set(), answers: new Map() }
}

function racer({ aimMs, lastWord, ids, speaking, answers }: Race, message: string): RawScript {
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

/** Lets them say it, and answers the jobs once all have ended. */
async function run({ lastWord, ids, answers }: Race): Promise<AgentJob[]> {
  lastWord.resolve()
  return waitUntil(async () => {
    const rows = await stage.runtime.database.agentJob.findMany({ where: { id: { in: [...ids.values()] } } })
    return rows.every(({ state }) => isTerminal(state)) && answers.size === rows.length && rows
  })
}

/** Runs one batch of parents, whose children race. */
async function runBatch({ number, aimMs }: Batch): Promise<{ jobs: AgentJob[]; answers: Map<string, AbortOutput> }> {
  const { database } = stage.runtime
  const race = openRace(aimMs)
  const ended = Promise.withResolvers<void>()
  const spawnFamily = async (parent: number) => {
    for (let child = 0; child < CHILDREN; child += 1) {
      const message = childMessage(number, parent, child)
      stage.model.answer(message, racer(race, message))
    }
    const [job] = await stage.spawnAgents(
      [`parent ${parent} in ${number}`],
      parentScript(number, parent, ended.promise),
    )
    return job?.id ?? ''
  }
  const parents = await Promise.all(Array.from({ length: PARENTS }, (_, parent) => spawnFamily(parent)))
  await waitUntil(() => race.speaking.size === PARENTS * CHILDREN, { what: 'every child speaks' })
  for (const { id, inputMessage } of await database.agentJob.findMany({ where: { parentJobId: { in: parents } } }))
    race.ids.set(inputMessage, id)
  const jobs = await run(race)
  ended.resolve()
  await waitUntil(async () => {
    const rows = await database.agentJob.findMany({ where: { id: { in: parents } } })
    return rows.every(({ state }) => state === 'completed')
  })
  return { jobs, answers: race.answers }
}

/** Runs one batch of jobs that nobody waits for. */
async function runLoneBatch({
  number,
  aimMs,
}: Batch): Promise<{ jobs: AgentJob[]; answers: Map<string, AbortOutput> }> {
  const race = openRace(aimMs)
  const messages = (kind: string, length: number) => Array.from({ length }, (_, at) => `${kind} ${at} in ${number}`)
  for (const message of messages('root', ROOTS)) {
    const [job] = await stage.spawnAgents([message], racer(race, message))
    race.ids.set(message, job?.id ?? '')
  }
  for (const message of messages('turn', TURNS)) {
    stage.model.answer(message, racer(race, message))
    race.ids.set(message, await startTurnOf(stage, await openConvo(stage, 'agent'), message))
  }
  await waitUntil(() => race.speaking.size === race.ids.size, { what: 'every job speaks' })
  return { jobs: await run(race), answers: race.answers }
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
function expectedOf({ mode, parentJobId, state, reason, steps }: AgentJob) {
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
    event: mode === 'async' && parentJobId !== null ? told : [],
    parent: parentJobId === null ? undefined : told,
    ended: [{ state, reason, steps, generation: 1 }],
  }
}

/**
 * Runs batches, moving the aim to the instant at which both outcomes are as likely, and answers how many came to each. On a
 * slow machine that takes more of them: they go on until each outcome has come more than `least` times.
 */
async function countOutcomes({ batches, least }: typeof WITH_PARENTS, runOne: (batch: Batch) => Promise<AgentJob[]>) {
  const counts = { completed: 0, aborted: 0 }
  let aimMs = -20
  let stepMs = AIM_STEP_MS
  for (let number = 1; number <= batches || Math.min(counts.completed, counts.aborted) <= least; number += 1) {
    const jobs = await runOne({ number, aimMs })
    const completed = jobs.filter(({ state }) => state === 'completed').length
    counts.completed += completed
    counts.aborted += jobs.length - completed
    // Far off the mark it takes larger steps.
    stepMs = completed === 0 || completed === jobs.length ? stepMs * 2 : AIM_STEP_MS
    aimMs -= (completed / jobs.length - 0.5) * stepMs
  }
  return counts
}

test('STATE-1: of 1,000 aborts and more at the instant of the end each has one outcome, and all are told the same', async () => {
  const counts = await countOutcomes(WITH_PARENTS, async (batch) => {
    const { jobs, answers } = await runBatch(batch)
    expect(jobs).toHaveLength(PARENTS * CHILDREN)
    const told = jobs.filter(({ mode }) => mode === 'async')
    await waitUntil(() => told.every(({ id }) => events.has(`agent-job-${id}-1`)), { what: 'every event' })
    const outcomes = outcomesRead(batch.number)
    const looks = jobs.map(async (job) => {
      expect(await toldAbout(job, answers.get(job.id), outcomes), job.id).toEqual(expectedOf(job))
    })
    await Promise.all(looks)
    return jobs
  })
  expect(counts.completed + counts.aborted).toBeGreaterThan(1_000)
})

test('STATE-1: so it is with roots and turns, of which the former end many at a time', async () => {
  await countOutcomes(ALONE, async (batch) => {
    const { jobs, answers } = await runLoneBatch(batch)
    expect(jobs).toHaveLength(ROOTS + TURNS)
    const looks = jobs.map(async (job) => {
      expect(await toldAbout(job, answers.get(job.id), new Map()), job.id).toEqual(expectedOf(job))
    })
    await Promise.all(looks)
    return jobs
  })
})
