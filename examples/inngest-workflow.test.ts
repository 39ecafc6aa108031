// The function in Inngest's own test engine: its steps are real, only the wait is given what it would have got.
import path from 'node:path'
import { InngestTestEngine, mockCtx } from '@inngest/test'
import { type InngestStub, startInngestStub } from '@offshoot/testing/inngest-stub'
import { startApiProcess } from '@offshoot/testing/processes'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { z } from 'zod'
import { type ExampleStage, openExampleStage } from './example-stage.ts'
import { researchTicket } from './inngest-workflow.ts'

let example: ExampleStage
let inngest: InngestStub
beforeAll(async () => {
  inngest = await startInngestStub()
  example = await openExampleStage({
    OFFSHOOT_CONFIG: path.join(import.meta.dirname, 'inngest-workflow.ts'),
    INNGEST_DEV: 'true',
    INNGEST_BASE_URL: inngest.url,
  })
  for (const [name, value] of Object.entries(example.environment)) vi.stubEnv(name, value)
  example.mock.answer('Where is my parcel?', ['At the door.'])
  example.mock.answer(/other|last/, ['At the neighbour.'])
  example.mock.answer('Where is my third parcel?', ['In the garden.'])
  example.mock.answer('Never end.', [{ text: 'word '.repeat(5_000), pace: { ttft: 20, tps: 20 } }])
})
afterAll(async () => {
  const { offshoot } = await import('./offshoot-client.ts')
  await offshoot.close()
  vi.unstubAllEnvs()
  await example.close()
  await inngest.stop()
})

const opened = (question: string) => ({ name: 'ticket/opened', data: { ticket: 7, userId: 'alice', question } })

/**
 * One run of the function. The engine makes up another run id each time that it calls it; Inngest does not. `wait` gives
 * what the wait gets: the event, or null when the time is up. (The engine's `steps` cannot: inngest-js issue 1652.)
 */
function runOf(question: string, runId: string, wait?: () => Promise<unknown>): InngestTestEngine {
  return new InngestTestEngine({
    function: researchTicket,
    events: [opened(question)],
    transformCtx(context) {
      const mocked = mockCtx(context)
      if (wait !== undefined) Object.assign(mocked.step, { waitForEvent: wait })
      return { ...mocked, runId }
    },
  })
}

const jobsOf = (message: string) =>
  example.stage.runtime.database.agentJob.findMany({ where: { inputMessage: message } })

/** What Offshoot sends at the end of the job. */
async function eventOf(message: string) {
  const [job] = await jobsOf(message)
  return waitUntil(() => inngest.received.find(({ data }) => data['jobId'] === job?.id))
}

test('a run spawns once, waits for the event of its job, and goes on with the result', async () => {
  const run = runOf('Where is my parcel?', 'run-1')
  const { result: jobId } = await run.executeStep('spawn')
  // As Inngest does when it has not got the answer.
  expect(await run.executeStep('spawn')).toMatchObject({ result: jobId })

  const { step: wait } = await run.executeStep('wait-for-answer')
  expect(wait).toMatchObject({
    op: 'WaitForEvent',
    name: 'question/answered',
    opts: { if: `async.data.jobId == "${String(jobId)}"`, timeout: '30m' },
  })

  const event = await eventOf('Where is my parcel?')
  expect(event).toMatchObject({
    id: `agent-job-${String(jobId)}-1`,
    name: 'question/answered',
    data: { jobId, ticket: 7, state: 'completed', result: 'At the door.' },
  })
  const goesOn = await runOf('Where is my parcel?', 'run-1', async () => event).execute()
  expect(goesOn).toMatchObject({ result: 'Ticket 7: At the door.' })

  expect(await jobsOf('Where is my parcel?')).toMatchObject([{ id: jobId }])
  expect(example.mock.calls('Where is my parcel?')).toBe(1)
  expect(inngest.asked.filter((id) => id === event.id)).toHaveLength(1)
})

test('another run spawns a job of its own', async () => {
  const question = 'Where is my other parcel?'
  for (const runId of ['run-2', 'run-3']) await runOf(question, runId).executeStep('spawn')
  expect((await jobsOf(question)).map(({ idempotencyKey }) => idempotencyKey)).toEqual(
    expect.arrayContaining(['research-ticket-run-2', 'research-ticket-run-3']),
  )
})

test('when the time is up the job is aborted and the run goes on without it', async () => {
  const run = runOf('Never end.', 'run-4', async () => {
    await waitUntil(() => example.mock.calls('Never end.') === 1)
    return null
  })
  expect(await run.execute()).toMatchObject({ result: 'Ticket 7: A person will look into this.' })
  expect(await jobsOf('Never end.')).toMatchObject([
    { state: 'aborted', reason: 'aborted_by_user', abortText: 'the ticket has waited long enough' },
  ])
  expect(await eventOf('Never end.')).toMatchObject({ data: { state: 'aborted' } })
})

test('an event that the wait has missed costs nothing but time', async () => {
  const run = runOf('Where is my third parcel?', 'run-5', async () => {
    await eventOf('Where is my third parcel?')
    return null
  })
  expect(await run.execute()).toMatchObject({ result: 'Ticket 7: In the garden.' })
  expect(await jobsOf('Where is my third parcel?')).toMatchObject([{ state: 'completed' }])
})

test('a refused spawn fails its step with the sentence that says why', async () => {
  // Inngest's logger tells it, too.
  const logged = vi.spyOn(console, 'error').mockReturnValue()
  const { error } = await runOf('', 'run-6').executeStep('spawn')
  logged.mockRestore()
  expect(error).toMatchObject({ message: expect.stringContaining('message must be 1 to 100000 characters long') })
  expect(await jobsOf('')).toEqual([])
})

const planSchema = z.tuple([z.object({ id: z.string(), op: z.string(), data: z.unknown() })])

test('the API serves each step, and ends in order with the connection that it has made', async () => {
  const api = await startApiProcess(example.environment)
  const event = opened('Where is my last parcel?')
  const steps: Record<string, unknown> = {}
  /** What Inngest asks for after each step, with what the steps before have come to; the answer is the next one. */
  async function nextStep() {
    const stack = Object.keys(steps)
    const ctx = { attempt: 0, run_id: 'run-7', stack: { current: stack.length, stack } }
    const response = await fetch(`${api.url}/api/inngest?fnId=offshoot-research-ticket&stepId=step`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ctx, event, events: [event], steps, version: 2 }),
    })
    const [step] = planSchema.parse(await response.json())
    return step
  }

  const spawned = await nextStep()
  expect(await jobsOf('Where is my last parcel?')).toMatchObject([{ id: spawned.data }])
  steps[spawned.id] = { type: 'data', data: spawned.data }
  const wait = await nextStep()
  expect(wait).toMatchObject({ op: 'WaitForEvent' })
  steps[wait.id] = { type: 'data', data: await eventOf('Where is my last parcel?') }
  expect(await nextStep()).toMatchObject({ data: 'Ticket 7: At the neighbour.' })

  await api.stop()
  expect(await api.exited).toBe(0)
})
