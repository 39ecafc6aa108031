// A model that makes the same call in one step after the other.
import { jsonSchema, tool, type Tool } from 'ai'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { handBack } from '@offshoot/shared/operations/hand-back'
import type { AiTool } from '@offshoot/shared/tools/registry'
import { childrenOf, endOf, readJob, runRoot, spawnOf, spawnRoot } from '@offshoot/testing/agents'
import { callsTool, type RawModel, type RawScript, says, startRawModel, staysSilent } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage
let ran = 0

const inputSchema = jsonSchema<Record<string, unknown>>({ type: 'object' })

function custom(id: string, execute: NonNullable<Tool['execute']>, more: Partial<AiTool> = {}): AiTool {
  const counted: NonNullable<Tool['execute']> = (input: unknown, options) => {
    ran += 1
    return execute(input, options)
  }
  return { id, group: 'test', userSelect: true, tool: { inputSchema, execute: counted }, ...more }
}

const tools: AiTool[] = [
  custom('look', () => ({ stock: 3 })),
  custom('read', () => 'a text'),
  custom('count', () => ran),
  custom('poll', () => 'not yet', { mayRepeat: true }),
  custom('fail', async () => {
    throw new Error('the disk is full')
  }),
  custom('stream', async function* () {
    yield 'half'
    yield 'whole'
  }),
  {
    id: 'ask',
    group: 'test',
    userSelect: true,
    tool: tool({
      inputSchema,
      execute: () => 'raw',
      toModelOutput: () => ({ type: 'content', value: [{ type: 'text', text: 'cooked' }] }),
    }),
  },
]

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { environment: { LOG_LEVEL: 'silent' }, extensions: { tools } })
  await stage.putBot('bot', { toolNames: ['spawnAgent', 'checkAgent', ...tools.map(({ id }) => id)] })
})

beforeEach(() => {
  ran = 0
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

/** What the model read of its calls, in the last request with that message; of an error the text. */
function readsOf(message: string): string[] {
  const { input } = raw.requests(message).at(-1)?.body ?? {}
  const items: { type?: string; output?: string | { text?: string }[] }[] = Array.isArray(input) ? input : []
  return items
    .filter((item) => item.type === 'function_call_output')
    .map(({ output }) =>
      typeof output === 'string' ? textOf(output) : (output ?? []).map(({ text }) => text ?? '').join('\n\n'),
    )
}

function textOf(output: string): string {
  const error = output.startsWith('{"error":') ? String(JSON.parse(output).error) : output
  return error.replace(/^(RepeatedCall)?Error: /, '')
}

const asksSevenTimes: RawScript = (reply) => {
  for (let at = 0; at < 7; at += 1) reply.call('read', {}, `call_${at}`)
  reply.finish()
}
const times = (count: number, script: RawScript) => Array.from({ length: count }, () => script)
const note = (name: string, count: number) =>
  `You have called ${name} ${count} times in a row with the same input and got the same result. Do not repeat it: use what you have, do something else, or answer.`
const refusal = (name: string) =>
  `The call was not run: you have made this same call of ${name} 5 times in a row. Do something else, or answer with what you have.`
const repeatEvents = (jobId: string) =>
  stage.runtime.database.agentEvent.findMany({ where: { jobId, kind: 'repeated-calls' } })

test('COST-8: the third identical call in a row is noted with its result, the sixth is not run', async () => {
  raw.answer('go round', ...times(8, callsTool('look', { at: 'tea', in: ['a', 'b'] })), says('enough'))
  const job = await runRoot(stage, 'bot', 'go round')
  expect(job).toMatchObject({ state: 'completed', result: 'enough', steps: 9 })
  const result = '{"stock":3}'
  expect(readsOf('go round')).toEqual([
    result,
    result,
    ...[3, 4, 5].map((count) => `${result}\n\n${note('look', count)}`),
    ...times(3, says('')).map(() => refusal('look')),
  ])
  expect(ran).toBe(5)
  // What is stored, and what viewers see, is the result alone.
  const stored = await stage.runtime.database.agentToolCall.findMany({ where: { jobId: job.id, stepIndex: { lt: 5 } } })
  expect(stored.map(({ output }) => output)).toEqual(Array.from({ length: 5 }, () => ({ stock: 3 })))
  expect(await repeatEvents(job.id)).toMatchObject([{ data: { step: 2, toolName: 'look' } }])
})

test('COST-8: the order of keys makes no other call; another input, another tool or a step between begins anew', async () => {
  raw.answer(
    'vary',
    callsTool('look', { a: 1, b: { c: 2, d: 3 } }),
    callsTool('look', { b: { d: 3, c: 2 }, a: 1 }),
    callsTool('look', { a: 1, b: { c: 2, d: 4 } }),
    callsTool('look', { a: 1, b: { c: 2, d: 3 } }),
    callsTool('read', { a: 1, b: { c: 2, d: 3 } }),
    ...times(2, callsTool('look', { a: 1, b: { c: 2, d: 3 } })),
    says('done'),
  )
  const job = await runRoot(stage, 'bot', 'vary')
  expect(readsOf('vary').join()).not.toContain('in a row')
  expect(await repeatEvents(job.id)).toEqual([])
  raw.answer('reorder', callsTool('look', { a: 1, b: 2 }), ...times(2, callsTool('look', { b: 2, a: 1 })), says('done'))
  await runRoot(stage, 'bot', 'reorder')
  expect(readsOf('reorder').at(-1)).toContain('3 times in a row')
})

test('COST-8: calls with other results each time, and tools that are there to be asked again, run on', async () => {
  raw.answer('count', ...times(8, callsTool('count', {})), says('done'))
  const counted = await runRoot(stage, 'bot', 'count')
  expect(readsOf('count')).toEqual(['1', '2', '3', '4', '5', '6', '7', '8'])
  raw.answer('poll', ...times(8, callsTool('poll', {})), says('done'))
  const polled = await runRoot(stage, 'bot', 'poll')
  expect(readsOf('poll')).toEqual(Array.from({ length: 8 }, () => 'not yet'))
  for (const { id } of [counted, polled]) expect(await repeatEvents(id)).toEqual([])
})

test('COST-8: several identical calls in one step are one round', async () => {
  raw.answer('ask seven times', asksSevenTimes, asksSevenTimes, says('done'))
  await runRoot(stage, 'bot', 'ask seven times')
  expect(readsOf('ask seven times')).toEqual(Array.from({ length: 14 }, () => 'a text'))
})

test.each([
  ['read', 'a text'],
  ['stream', 'whole'],
  ['ask', 'cooked'],
  ['fail', 'the disk is full'],
])('COST-8: the note comes with a result of every kind: %s', async (name, result) => {
  raw.answer(`repeat ${name}`, ...times(7, callsTool(name, {})), says('done'))
  const job = await runRoot(stage, 'bot', `repeat ${name}`)
  expect(job).toMatchObject({ state: 'completed' })
  expect(readsOf(`repeat ${name}`)).toEqual([
    result,
    result,
    ...[3, 4, 5].map((count) => `${result}\n\n${note(name, count)}`),
    refusal(name),
    refusal(name),
  ])
})

test('COST-8: the same sub-agent spawned again and again is noted, and refused, although each has its own result', async () => {
  raw.answer('delegate', ...times(7, callsTool('spawnAgent', spawnOf('bot', 'the work'))), says('done'))
  raw.answer('the work', says('worked'))
  const job = await runRoot(stage, 'bot', 'delegate')
  expect(job).toMatchObject({ state: 'completed', result: 'done' })
  expect(await childrenOf(stage, job.id)).toHaveLength(5)
  const reads = readsOf('delegate')
  expect(reads.map((read) => /(\d) times in a row/.exec(read)?.[1])).toEqual([
    undefined,
    undefined,
    '3',
    '4',
    '5',
    '5',
    '5',
  ])
  expect(reads[2]).toContain('"result":"worked"')
  expect(reads.slice(5)).toEqual([refusal('spawnAgent'), refusal('spawnAgent')])
  expect(await repeatEvents(job.id)).toMatchObject([{ data: { step: 2, toolName: 'spawnAgent' } }])
})

test('COST-8: the rounds count on over a crash', async () => {
  raw.answer(
    'round and round',
    ...times(4, callsTool('look', {})),
    staysSilent,
    ...times(3, callsTool('look', {})),
    says('dizzy'),
  )
  const { id } = await spawnRoot(stage, 'bot', 'round and round')
  await waitUntil(() => raw.requests('round and round').length === 5)
  const job = await readJob(stage, id)
  // As the reconciler does with the job of a lost worker.
  await handBack(stage.runtime, job, { lostWorkerId: job.workerId ?? '' }, 'worker-lost')
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'dizzy', attempt: 2 })
  expect(readsOf('round and round').slice(-3)).toEqual([
    `{"stock":3}\n\n${note('look', 5)}`,
    refusal('look'),
    refusal('look'),
  ])
  expect(ran).toBe(5)
  expect(await repeatEvents(id)).toHaveLength(1)
})

test('COST-6 COST-8: a model that polls is told when to look again, is never refused, and reads what is new', async () => {
  const spoken = Promise.withResolvers<void>()
  let jobId = ''
  const looks: RawScript = (reply, { body }) => {
    jobId ||= /"jobId\\?":\\?"([0-9a-f-]{36})/.exec(JSON.stringify(body['input']))?.[1] ?? ''
    reply.call('checkAgent', { jobId }, 'call_check')
    reply.finish()
  }
  raw.answer(
    'poll a child',
    callsTool('spawnAgent', spawnOf('bot', 'slow child', { mode: 'async' })),
    ...times(7, looks),
    async (reply) => {
      spoken.resolve()
      await waitUntil(async () => (await readJob(stage, jobId)).state === 'completed')
      reply.call('checkAgent', { jobId }, 'call_check')
      reply.finish()
    },
    looks,
    says('done'),
  )
  raw.answer('slow child', async (reply) => {
    await spoken.promise
    reply.text('at last')
    reply.finish()
  })
  await runRoot(stage, 'bot', 'poll a child')
  const reads = readsOf('poll a child').map((read) => JSON.parse(read))
  const full = reads.filter((read) => read.unchanged === undefined)
  // The spawn's answer, the first look, at most one more when a worker had taken the child, and the end.
  expect(full.length).toBeLessThanOrEqual(4)
  expect(full.at(-1)).toMatchObject({ state: 'completed', result: 'at last' })
  const waits = reads.flatMap((read) => (read.lookAgainSeconds === undefined ? [] : [read.lookAgainSeconds]))
  expect(waits.join(' ')).toContain('10 20 40')
  expect(reads.at(-1)).toMatchObject({ state: 'completed', unchanged: true })
})
