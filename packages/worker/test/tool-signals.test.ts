// The signal that tools get, the look before they run, and what becomes of results that come too late.
import { jsonSchema, type Tool, type ToolExecutionOptions, type ToolSet } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { storeAbortWish } from '@offshoot/shared/db/agent-jobs'
import type { AiTool } from '@offshoot/shared/tools/registry'
import { abort, runRoot, spawnRoot } from '@offshoot/testing/agents'
import { claimNext, claimOf, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { callsTool, type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { createCutCalls } from '../src/cut-calls.ts'
import { createJournal } from '../src/journal.ts'
import { createStopSwitch, type StopSwitch } from '../src/run-stop.ts'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const inputSchema = jsonSchema<Record<string, unknown>>({ type: 'object' })

/** Calls under way, by tool: their signals, and how the test ends them. */
const calls = new Map<string, { signal: AbortSignal | undefined; end: PromiseWithResolvers<string> }>()

function begin(name: string, { abortSignal }: ToolExecutionOptions<unknown>): Promise<string> {
  const end = Promise.withResolvers<string>()
  calls.set(name, { signal: abortSignal, end })
  return end.promise
}

const plain: Tool = { inputSchema, execute: (_: unknown, options) => begin('plain', options) }
const streaming: Tool = {
  inputSchema,
  async *execute(_: unknown, options) {
    yield 'begun'
    yield begin('streaming', options)
  },
}
const aiTool = (id: string, tool: Tool): AiTool => ({ id, group: 'test', userSelect: true, tool })

let raw: RawModel
let stage: WorkerStage
let quiet: TestStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    environment: { TOOL_TIMEOUT_MS: '60000' },
    extensions: { tools: [aiTool('plain', plain), aiTool('streaming', streaming)] },
  })
  await stage.putBot('bot', { toolNames: ['plain', 'streaming', 'spawnAgent', 'checkAgent'] })
  quiet = await openTestStage()
  await quiet.putBot('writer')
})

afterAll(async () => {
  await stage.close()
  await quiet.close()
  await raw.stop()
})

const callOf = (name: string) => waitUntil(() => calls.get(name), { what: `the call of ${name}` })

test('COST-7: an abort reaches every tool that is running, as its signal', async () => {
  raw.answer('use both', (reply) => {
    reply.call('plain', {}, 'call_0')
    reply.call('streaming', {}, 'call_1')
    reply.finish()
  })
  const { id } = await spawnRoot(stage, 'bot', 'use both')
  const [first, second] = [await callOf('plain'), await callOf('streaming')]
  expect([first.signal?.aborted, second.signal?.aborted]).toEqual([false, false])
  await abort(stage, id)
  expect([first.signal?.aborted, second.signal?.aborted]).toEqual([true, true])
})

/** A journal on a job that this test has claimed, with one of its steps under way. */
async function openStep(tools: ToolSet, stopSwitch: StopSwitch = createStopSwitch()) {
  const { runtime } = quiet
  const job = await claimNext(runtime, (await spawnJob(runtime, `user-${Math.random()}`)).id)
  const log: unknown[][] = []
  const journal = createJournal({
    database: runtime.database,
    groups: runtime.groups,
    mergeWindow: runtime.extensions.mergeWindow,
    claim: claimOf(job),
    generation: 1,
    stopSwitch,
    cutCalls: createCutCalls(),
    limits: { firstChunkMs: 1_000, chunkMs: 1_000 },
    logger: Object.assign(Object.create(runtime.logger), { info: (...line: unknown[]) => void log.push(line) }),
    beforeCall: async () => undefined,
    beforeTool: async () => undefined,
    beforeStore: async () => undefined,
    onStored: () => undefined,
    modelId: 'openai:gpt-5',
    metrics: stage.runtime.metrics,
  })
  const streamed: unknown[] = []
  journal.begin({
    index: 0,
    inbox: [],
    onSaid: () => undefined,
    onCalls: async () => undefined,
    onToolValue: (_, value) => void streamed.push(value),
  })
  const wrapped = journal.wrapTools(tools)
  /** Runs a tool to its end, as the SDK does, and answers all values that it has given. */
  async function run(name: string): Promise<unknown[]> {
    const options = { toolCallId: 'call_0', messages: [], context: {}, abortSignal: stopSwitch.signal }
    const last: unknown = await wrapped[name]?.execute?.({} as never, options as never)
    return [...streamed, last]
  }
  return { job, log, run, stopSwitch }
}

test('COST-7: a tool does not run when its start finds that somebody wants the job’s end', async () => {
  let ran = 0
  const { job, run, stopSwitch } = await openStep({ touch: { inputSchema, execute: () => (ran += 1) } })
  await storeAbortWish(quiet.runtime.database, [job.id], { by: 'alice', reason: 'aborted_by_user', text: null })
  await expect(run('touch')).rejects.toThrow('abort-wish')
  expect(stopSwitch.reason()).toEqual({ kind: 'abort-wish' })
  expect(ran).toBe(0)
})

test('COST-7: a tool does not run when its start finds that the claim is gone', async () => {
  let ran = 0
  const { job, run } = await openStep({ touch: { inputSchema, execute: () => (ran += 1) } })
  await quiet.runtime.database.agentJob.update({ where: { id: job.id }, data: { claimToken: 'another' } })
  await expect(run('touch')).rejects.toThrow('claim-lost')
  expect(ran).toBe(0)
})

test.each([
  ['plain', plain],
  ['streaming', streaming],
])('COST-7: the late result of a %s tool is dropped and logged', async (name, tool) => {
  calls.clear()
  const { job, log, run, stopSwitch } = await openStep({ [name]: tool })
  const running = run(name)
  const { end } = await callOf(name)
  stopSwitch.stop({ kind: 'deadline' })
  await expect(running).rejects.toThrow('deadline')
  expect(log).toEqual([])
  end.resolve('much too late')
  await waitUntil(() => log.length > 0, { what: 'the log line' })
  expect(log).toEqual([
    [
      { jobId: job.id, stepIndex: 0, toolCallId: 'call_0', toolName: name },
      'the result of a tool came after its end; it is dropped',
    ],
  ])
  const rows = await quiet.runtime.database.agentToolCall.findMany({ where: { jobId: job.id } })
  expect(rows).toMatchObject([{ toolName: name, finishedAt: null, output: null }])
})

test('COST-7: a tool that throws when it is stopped, as it should, is no late result', async () => {
  calls.clear()
  const { log, run, stopSwitch } = await openStep({ plain })
  const running = run('plain')
  const { end } = await callOf('plain')
  stopSwitch.stop({ kind: 'deadline' })
  end.reject(new Error('stopped'))
  await expect(running).rejects.toThrow('deadline')
  await new Promise((resolve) => setImmediate(resolve))
  expect(log).toEqual([])
})

test('a tool that ends in time is no late result either', async () => {
  calls.clear()
  raw.answer('in time', callsTool('plain', {}), says('done'))
  const running = runRoot(stage, 'bot', 'in time')
  ;(await callOf('plain')).end.resolve('here')
  expect(await running).toMatchObject({ state: 'completed', result: 'done' })
})
