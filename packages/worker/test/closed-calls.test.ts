// STATE-12: whatever ends a job in the middle of its tool calls, the convo's history has one result for each call, and the
// next turn's prompt is one that providers take.
import { jsonSchema, type Tool } from 'ai'
import { encodeStored } from '@offshoot/shared/db/stored-value'
import { newId } from '@offshoot/shared/ids'
import { retryAgent } from '@offshoot/shared/operations/retry-agent'
import { abort, answerOf, endOf, openConvo, readJob, spawnOf, startTurnOf } from '@offshoot/testing/agents'
import { type RawModel, type RawScript, says, startRawModel, ticking } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const anything = jsonSchema<Record<string, unknown>>({ type: 'object' })
let hanging = 0
let sent = 0
const tools = {
  hang: () => {
    hanging += 1
    return new Promise(() => undefined)
  },
  send: () => {
    sent += 1
    return `sent ${sent}`
  },
  fail: async () => {
    throw new Error('the disk is full')
  },
}

let raw: RawModel
let stage: WorkerStage
beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    extensions: {
      tools: Object.entries(tools).map(([id, execute]) => ({
        id,
        group: 'test',
        userSelect: true,
        tool: { inputSchema: anything, execute } as Tool,
      })),
    },
  })
  await stage.putBot('bot', { toolNames: [...Object.keys(tools), 'spawnAgent'] })
})
afterAll(async () => {
  await stage.close()
  await raw.stop()
})

/** A step that says something, calls these tools and ends. */
function stepOf(names: string[], { incomplete = false, input = {} } = {}): RawScript {
  return (reply) => {
    reply.text('Let me do it. ')
    for (const name of names) reply.call(name, name === 'spawnAgent' ? spawnOf('bot', 'child') : input, `call_${name}`)
    reply.finish(incomplete ? { incomplete: 'max_output_tokens' } : {})
  }
}

interface Item {
  type?: string
  role?: string
  call_id?: string
  output?: unknown
}

/** The calls in a prompt with what the model reads as their results; each has exactly one, behind it. */
function resultsIn(body: Record<string, unknown> | undefined): Record<string, string> {
  const items = (Array.isArray(body?.['input']) ? body['input'] : []) as Item[]
  const calls = items.filter(({ type }) => type === 'function_call').map((item) => item.call_id ?? '')
  const results = items.filter(({ type }) => type === 'function_call_output').map((item) => item.call_id ?? '')
  expect(results.toSorted()).toEqual(calls.toSorted())
  expect(new Set(calls).size).toBe(calls.length)
  for (const id of calls) {
    const at = (type: string) => items.findIndex((item) => item.type === type && item.call_id === id)
    expect(at('function_call_output')).toBeGreaterThan(at('function_call'))
  }
  return Object.fromEntries(
    items
      .filter(({ type }) => type === 'function_call_output')
      .map(({ call_id: id = '', output }) => [id, typeof output === 'string' ? output : JSON.stringify(output)]),
  )
}

let turns = 0

/** A turn whose model does `script`; `end` ends it. Then the next turn of the same convo. */
async function cutTurn(script: RawScript, end: (jobId: string) => Promise<unknown>) {
  turns += 1
  const [first, next] = [`first ${turns}`, `next ${turns}`]
  raw.answer(first, script, says('I went on.'))
  raw.answer(next, says('Here I am again.'))
  const convoId = await openConvo(stage, 'bot')
  const jobId = await startTurnOf(stage, convoId, first)
  await end(jobId)
  const job = await endOf(stage, jobId)
  const nextJob = await endOf(stage, await startTurnOf(stage, convoId, next))
  expect(nextJob).toMatchObject({ state: 'completed', result: 'Here I am again.' })
  const { body } = raw.requests(next)[0] ?? {}
  return { job, first, results: resultsIn(body), prompt: JSON.stringify(body), parts: await answerOf(stage, jobId) }
}

const whileItHangs = async (jobId: string, end: (jobId: string) => Promise<unknown>) => {
  const before = hanging
  await waitUntil(() => hanging > before || hanging > 0)
  await end(jobId)
}

const CUT = /cut off by the end of the job, and its outcome is unknown/

test('STATE-12 LOSS-3: an abort while a tool runs keeps the step: what had ended has its result, what had not is unknown', async () => {
  hanging = 0
  const { job, results, prompt, parts } = await cutTurn(stepOf(['send', 'fail', 'hang']), (jobId) =>
    whileItHangs(jobId, async () => {
      const { database } = stage.runtime
      await waitUntil(
        async () => (await database.agentToolCall.count({ where: { jobId, finishedAt: { not: null } } })) === 2,
      )
      await abort(stage, jobId)
    }),
  )
  expect(job).toMatchObject({ state: 'aborted', result: 'Let me do it. ', partial: true })
  expect(results['call_send']).toContain('sent ')
  expect(results['call_fail']).toContain('the disk is full')
  expect(results['call_hang']).toMatch(CUT)
  expect(prompt).toContain('Let me do it. ')
  expect(parts.map((part) => ('state' in part ? `${part.type} ${part.state}` : part.type))).toEqual([
    'step-start',
    'text done',
    'tool-send output-available',
    'tool-fail output-error',
    'tool-hang output-error',
  ])
})

test('STATE-12: so does a deadline', async () => {
  hanging = 0
  const { job, results } = await cutTurn(stepOf(['hang']), (jobId) =>
    whileItHangs(jobId, async () => {
      // The worker counts the time it was given; another attempt gets the new deadline.
      await stage.runtime.database.agentJob.update({ where: { id: jobId }, data: { deadlineAt: new Date(0) } })
      const row = await readJob(stage, jobId)
      await stage.runtime.database.agentJob.update({
        where: { id: jobId },
        data: { claimToken: null, workerId: null, state: 'pending', deliverySeq: row.deliverySeq + 1 },
      })
    }),
  )
  expect(job).toMatchObject({ state: 'failed', reason: 'timeout_total', result: 'Let me do it. ', partial: true })
  expect(results['call_hang']).toMatch(CUT)
})

test('STATE-12: an abort while a job waits on its sub-agent keeps what it had said and asked', async () => {
  raw.answer('child', ticking)
  const { job, results, prompt } = await cutTurn(stepOf(['send', 'spawnAgent']), async (jobId) => {
    await waitUntil(async () => (await readJob(stage, jobId)).waitingOn === 'children')
    await abort(stage, jobId)
  })
  expect(job).toMatchObject({ state: 'aborted', result: 'Let me do it. ', partial: true })
  expect(results['call_send']).toContain('sent ')
  expect(results['call_spawnAgent']).toContain('The call has no result.')
  expect(prompt).toContain('Let me do it. ')
})

test('STATE-12 STATE-23: calls of an output that was cut by its limit are closed', async () => {
  const { job, results } = await cutTurn(stepOf(['send'], { incomplete: true }), async () => undefined)
  expect(job).toMatchObject({ state: 'failed', reason: 'output_limit' })
  expect(results['call_send']).toContain('output limit')
})

test('STATE-12: an abort in the middle of the output leaves the text, and no call that nobody ran', async () => {
  const { results, prompt } = await cutTurn(
    async (reply) => {
      reply.text('Let me do it. ')
      reply.call('send', {}, 'call_send')
      await reply.closed
    },
    async (jobId) => {
      const texts = async () => JSON.stringify(await stage.runtime.liveStreams.read(jobId, 0))
      await waitUntil(async () => (await texts()).includes('call_send'))
      await abort(stage, jobId)
    },
  )
  expect(results).toEqual({})
  expect(prompt).toContain('Let me do it. ')
})

test('STATE-12: a retry of a job that was cut goes on with one result for each call, and runs nothing twice', async () => {
  hanging = 0
  const before = sent
  const { job, first } = await cutTurn(stepOf(['send', 'hang']), (jobId) =>
    whileItHangs(jobId, async () => {
      await waitUntil(() => sent > before)
      await abort(stage, jobId)
    }),
  )
  const answer = await retryAgent(stage.runtime, { userId: 'alice', admin: false }, { jobId: job.id }, 'alice')
  expect(answer.kind).toBe('retried')
  expect(await endOf(stage, job.id)).toMatchObject({ state: 'completed', result: 'I went on.', generation: 2 })
  const results = resultsIn(raw.requests(first).at(-1)?.body)
  expect(results['call_send']).toContain('sent ')
  expect(results['call_hang']).toContain('unknown')
  expect(sent).toBe(before + 1)
})

/** The parts of an answer of a step that thinks and calls `send`, and one that says something. */
function oldAnswer(turn: number): object[] {
  return [
    { type: 'step-start' },
    {
      type: 'reasoning',
      text: 'Hm.',
      state: 'done',
      providerMetadata: { openai: { itemId: `rs_${turn}`, reasoningEncryptedContent: 'sealed' } },
    },
    { type: 'tool-send', toolCallId: `call_${turn}`, state: 'output-available', input: {}, output: `sent ${turn}` },
    { type: 'step-start' },
    { type: 'text', text: `answer ${turn}`, state: 'done' },
  ]
}

/** Stores turns of a convo that ended long ago. */
async function storeTurns(convoId: string, count: number): Promise<void> {
  const messages = Array.from({ length: count }, (_, turn) => [
    { role: 'user' as const, parts: encodeStored([{ type: 'text', text: `question ${turn}` }]) },
    { role: 'assistant' as const, parts: encodeStored(oldAnswer(turn)) },
  ]).flat()
  await stage.runtime.database.aiMessage.createMany({
    data: messages.map((message, at) => ({ id: newId(), convoId, ownerId: 'alice', seq: at + 1, ...message })),
  })
}

test('STATE-19: of a long convo a turn reads the newest 200 messages, from a user message on and in whole steps', async () => {
  const convoId = await openConvo(stage, 'bot')
  await storeTurns(convoId, 110)
  raw.answer('the 221st message', says('I remember.'))
  const job = await endOf(stage, await startTurnOf(stage, convoId, 'the 221st message'))
  expect(job).toMatchObject({ state: 'completed', result: 'I remember.' })
  const [request] = raw.requests('the 221st message')
  const items = (Array.isArray(request?.body['input']) ? request.body['input'] : []) as (Item & { id?: string })[]
  const read = items
    .filter(({ role }) => role !== 'developer')
    .map(({ type, role, id, call_id: callId }) => [type ?? role, callId ?? id].filter(Boolean).join(' '))
  // The 200th from the end is the answer of turn 10, whose question is the 201st.
  const turnsRead = Array.from({ length: 99 }, (_, at) => at + 11)
  expect(read).toEqual([
    ...turnsRead.flatMap((turn) => [
      'user',
      `reasoning rs_${turn}`,
      `function_call call_${turn}`,
      `function_call_output call_${turn}`,
      'assistant',
    ]),
    'user',
  ])
  expect(JSON.stringify(items)).toContain('question 11')
  expect(JSON.stringify(items)).not.toContain('question 10"')
})
