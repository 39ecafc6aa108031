// Results that are too long for a model: what is shown of them, where the whole is, and how a model reads on.
import { jsonSchema, tool, type Tool } from 'ai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { characterCount } from '@offshoot/shared/contracts/text'
import { isTruncatedResult, MAX_RESULT_LENGTH } from '@offshoot/shared/contracts/truncated-result'
import { decodeStored } from '@offshoot/shared/db/stored-value'
import { newId } from '@offshoot/shared/ids'
import type { AiTool } from '@offshoot/shared/tools/registry'
import {
  answerOf,
  childrenOf,
  endOf,
  openConvo,
  runRoot,
  spawnOf,
  spawnRoot,
  startTurnOf,
} from '@offshoot/testing/agents'
import { callsTool, type RawModel, type RawScript, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const LINES = Array.from({ length: 20_000 }, (_, at) => `line ${at}\n`).join('')
const EMOJI = '😀'.repeat(60_000)
const IMAGE = 'iVBORw0KGgo'.repeat(10_000)

function custom(
  id: string,
  execute: NonNullable<Tool['execute']>,
  more: Partial<Tool> & { maxResultLength?: number } = {},
): AiTool {
  const { maxResultLength, ...rest } = more
  // `more` and `execute` together are a tool; the union type only spells out which go together.
  const made = { inputSchema: jsonSchema<Record<string, unknown>>({ type: 'object' }), execute, ...rest } as Tool
  return {
    id,
    group: 'test',
    userSelect: true,
    tool: made,
    ...(maxResultLength === undefined ? {} : { maxResultLength }),
  }
}

const tools: AiTool[] = [
  custom('lines', () => LINES),
  custom('rows', () => ({ rows: Array.from({ length: 5_000 }, (_, id) => ({ id, name: `row "${id}"` })) })),
  custom('emoji', () => EMOJI),
  custom('grow', async function* () {
    yield 'begun'
    yield LINES
    yield `${LINES}end`
  }),
  custom('failAtLength', () => {
    throw new RangeError(LINES)
  }),
  custom('summed', () => ({ lines: LINES }), {
    toModelOutput: () => ({ type: 'text', value: 'twenty thousand lines' }),
  }),
  custom('gossip', () => 'short', { toModelOutput: () => ({ type: 'text', value: LINES }) }),
  custom('generous', () => LINES, { maxResultLength: 1_000_000 }),
  custom('stingy', () => 'y'.repeat(1_500), { maxResultLength: 1_000 }),
  custom('picture', () => ({ png: IMAGE }), {
    toModelOutput: ({ output }) => ({
      type: 'content',
      value: [{ type: 'file', mediaType: 'image/png', data: { type: 'data', data: String(Object(output).png) } }],
    }),
  }),
  {
    id: 'plain',
    group: 'test',
    userSelect: true,
    tool: tool({ inputSchema: jsonSchema<object>({ type: 'object' }), execute: () => 'plain' }),
  },
]

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { extensions: { tools } })
  await stage.putBot('bot', { toolNames: ['spawnAgent', 'checkAgent', 'abortAgent', ...tools.map(({ id }) => id)] })
  // A bot may name readResult; it is offered no sooner for that.
  await stage.putBot('mute', { toolNames: ['readResult'] })
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

interface Read {
  callId: string
  output: string
}

/** What the model has read of its calls by its n-th request (the last one by default). */
function readOf(message: string, at = -1): Read[] {
  const { input } = raw.requests(message).at(at)?.body ?? {}
  const items: { type?: string; call_id?: string; output?: unknown }[] = Array.isArray(input) ? input : []
  return items.flatMap((item) =>
    item.type === 'function_call_output' ? [{ callId: item.call_id ?? '', output: String(item.output) }] : [],
  )
}

function offeredOf(message: string, at: number): string[] {
  const list = raw.requests(message).at(at)?.body['tools']
  return Array.isArray(list) ? list.map(({ name }: { name: string }) => name) : []
}

/** The input that the note in a text asks for; the text may be JSON. */
function hintIn(text: string): { ref: string; offset: number } | undefined {
  const note = /Read on with readResult\((\{ "ref": "[^"]+", "offset": \d+ \})\)/.exec(text.replaceAll('\\"', '"'))
  return note?.[1] === undefined ? undefined : (JSON.parse(note[1]) as { ref: string; offset: number })
}

/** Reads on as the notes say, as a model does, until the end; then says that it is done. */
const readsOn =
  (message: string): RawScript =>
  (reply) => {
    const hint = hintIn(readOf(message).at(-1)?.output ?? '')
    if (hint !== undefined) reply.call('readResult', hint, `call_${readOf(message).length}`)
    else reply.text('all read')
    reply.finish()
  }

/** Runs a job whose model calls one tool and then reads on to the end. */
async function runLong(message: string, name: string, input: unknown = {}) {
  raw.answer(message, callsTool(name, input), readsOn(message))
  const job = await runRoot(stage, 'bot', message)
  const [call] = await stage.runtime.database.agentToolCall.findMany({ where: { jobId: job.id, toolName: name } })
  return { job, call, read: readOf(message) }
}

/** Runs a job whose model calls one tool; answers what viewers are shown of the call while the job runs. */
async function runWatched(message: string, name: string) {
  const { promise: looked, resolve: goOn } = Promise.withResolvers<void>()
  raw.answer(message, callsTool(name, {}), async (reply) => {
    await looked
    reply.text('done')
    reply.finish()
  })
  const { id } = await spawnRoot(stage, 'bot', message)
  const outputs = await waitUntil(async () => {
    const chunks = (await stage.runtime.liveStreams.read(id, 0)).flatMap((batch) => batch.chunks)
    const shown = chunks.filter((chunk) => chunk.type === 'tool-output-available')
    return shown.at(-1)?.preliminary !== true && shown.length > 0 && shown.map(({ output }) => output)
  })
  goOn()
  await endOf(stage, id)
  const [call] = await stage.runtime.database.agentToolCall.findMany({ where: { jobId: id } })
  return { jobId: id, outputs, stored: decodeStored(call?.output) }
}

/** The whole, as the model has put it together from the head and the pages. */
function putTogether([first, ...pages]: Read[]): string {
  const head = first?.output.split('\n\n[')[0] ?? ''
  return head + pages.map(({ output }) => output.slice(0, output.lastIndexOf('\n\n[Characters '))).join('')
}

describe('COST-11: a tool result over the limit', () => {
  test('reaches the model as head and tail with its size; it reads the rest page by page', async () => {
    const { job, call, read } = await runLong('read lines', 'lines')
    expect(job).toMatchObject({ state: 'completed', result: 'all read' })
    const first = read[0]?.output ?? ''
    expect(first.length).toBeLessThanOrEqual(MAX_RESULT_LENGTH)
    expect(first).toContain(`of ${LINES.length} characters are left out here.`)
    expect(first.startsWith('line 0\nline 1\n')).toBe(true)
    expect(first.endsWith('line 19999\n')).toBe(true)
    expect(read.length).toBeGreaterThan(5)
    for (const { output } of read) expect(output.length).toBeLessThanOrEqual(MAX_RESULT_LENGTH)
    expect(putTogether(read) === LINES).toBe(true)
    expect(read.at(-1)?.output).toContain('This is the end.')
    expect(isTruncatedResult(decodeStored(call?.output))).toBe(true)
  })

  test('is the same in the journal, the live stream and the message, and whole in one blob', async () => {
    const { jobId, outputs, stored } = await runWatched('look everywhere', 'lines')
    expect(outputs).toEqual([stored])
    expect((await answerOf(stage, jobId)).find((part) => part.type === 'tool-lines')).toMatchObject({ output: stored })
    const blobs = await stage.runtime.database.blob.findMany({ where: { jobId } })
    expect(blobs.map(({ id, bytes }) => [id, Buffer.from(bytes).toString() === LINES])).toEqual([
      [Object(stored).ref, true],
    ])
  })

  test('that is no text is counted, shown and kept as JSON', async () => {
    const { read } = await runLong('read rows', 'rows')
    const whole: unknown = JSON.parse(putTogether(read))
    expect(Object(whole).rows).toHaveLength(5_000)
  })

  test('LOSS-8: is cut between characters everywhere, and counted in characters', async () => {
    const { read } = await runLong('read emoji', 'emoji')
    for (const { output } of read) expect(output.isWellFormed() && !output.includes('\ufffd')).toBe(true)
    expect(characterCount(putTogether(read))).toBe(60_000)
    expect(putTogether(read) === EMOJI).toBe(true)
  })

  test('of a tool that streams is shown in part all the way', async () => {
    const { jobId, outputs, stored } = await runWatched('let it grow', 'grow')
    expect(outputs).toHaveLength(4)
    expect(outputs[0]).toBe('begun')
    for (const output of outputs) expect(JSON.stringify(output).length).toBeLessThan(1.2 * MAX_RESULT_LENGTH)
    // The last value comes once more as the result, with the ref that it is kept under.
    expect(outputs.map((output) => Object(output).ref)).toEqual([undefined, undefined, undefined, Object(stored).ref])
    const blob = await stage.runtime.database.blob.findFirstOrThrow({ where: { jobId } })
    expect(Buffer.from(blob.bytes).toString() === `${LINES}end`).toBe(true)
  })

  test('an error is cut like a result, and can be read on', async () => {
    const { job, call, read } = await runLong('fail at length', 'failAtLength')
    expect(job.state).toBe('completed')
    const { error } = JSON.parse(read[0]?.output ?? '') as { error: string }
    expect(error.startsWith('RangeError: line 0\n')).toBe(true)
    const message = { callId: '', output: error.slice('RangeError: '.length) }
    expect(putTogether([message, ...read.slice(1)]) === LINES).toBe(true)
    expect(decodeStored(call?.error)).toMatchObject({ name: 'RangeError' })
    expect(JSON.stringify(call?.error).length).toBeLessThan(1.2 * MAX_RESULT_LENGTH)
  })

  test('what the tool itself tells the model of it is what the model reads, then and in later turns', async () => {
    const convoId = await openConvo(stage, 'bot')
    raw.answer('sum up', callsTool('summed', {}), says('done'))
    raw.answer('and again', says('done'))
    await endOf(stage, await startTurnOf(stage, convoId, 'sum up'))
    expect(readOf('sum up')).toMatchObject([{ output: 'twenty thousand lines' }])
    expect(offeredOf('sum up', -1)).not.toContain('readResult')
    await endOf(stage, await startTurnOf(stage, convoId, 'and again'))
    expect(readOf('and again')).toMatchObject([{ output: 'twenty thousand lines' }])
  })

  test('what a tool tells the model is cut, too', async () => {
    raw.answer('gossip', callsTool('gossip', {}), says('done'))
    await runRoot(stage, 'bot', 'gossip')
    expect(readOf('gossip')[0]?.output).toContain(`of ${LINES.length} characters are left out here.]`)
  })

  test('a tool may set another limit', async () => {
    raw.answer('be generous', callsTool('generous', {}), says('done'))
    await runRoot(stage, 'bot', 'be generous')
    expect(readOf('be generous')[0]?.output === LINES).toBe(true)
    raw.answer('be stingy', callsTool('stingy', {}), says('done'))
    await runRoot(stage, 'bot', 'be stingy')
    expect(readOf('be stingy')[0]?.output).toContain('of 1500 characters are left out here.')
  })

  test('an image is not cut', async () => {
    raw.answer('show it', callsTool('picture', {}), says('seen'))
    const job = await runRoot(stage, 'bot', 'show it')
    expect(job.state).toBe('completed')
    expect(JSON.stringify(raw.requests('show it').at(-1)?.body)).toContain(IMAGE)
  })
})

describe('readResult', () => {
  test('is offered from the step on in which something was truncated, and not before', async () => {
    raw.answer(
      'watch the tools',
      callsTool('plain', {}),
      callsTool('lines', {}),
      callsTool('plain', {}, 'call_again'),
      says('done'),
    )
    await runRoot(stage, 'bot', 'watch the tools')
    expect([0, 1, 2, 3].map((at) => offeredOf('watch the tools', at).includes('readResult'))).toEqual([
      false,
      false,
      true,
      true,
    ])
  })

  test('is not there for a bot without tools: its request has none', async () => {
    raw.answer('say nothing', says('nothing'))
    await runRoot(stage, 'mute', 'say nothing', { overrides: { maxSteps: 1 } })
    const { body } = raw.requests('say nothing')[0] ?? {}
    expect(body).not.toHaveProperty('tools')
    expect(body).not.toHaveProperty('tool_choice')
  })

  test('SEC-1: a foreign result and an unknown one get the same answer', async () => {
    const { call } = await runLong('mine', 'lines')
    const foreign = String(Object(decodeStored(call?.output)).ref)
    const ofBob = await spawnRoot(stage, 'bot', 'plain of bob', { userId: 'bob' })
    const unknown = newId()
    const asked = [foreign, unknown, ofBob.id]
    raw.answer(
      'peep',
      callsTool('lines', {}),
      (reply) => {
        asked.forEach((ref, at) => reply.call('readResult', { ref, offset: 0 }, `call_${at}`))
        reply.finish()
      },
      says('done'),
    )
    await runRoot(stage, 'bot', 'peep')
    const answers = readOf('peep').slice(1)
    expect(answers).toHaveLength(3)
    answers.forEach(({ output }, at) =>
      expect(JSON.parse(output.replace(asked[at] ?? '', '<ref>'))).toEqual({
        error: 'There is no result "<ref>". Give the ref as the shown part names it.',
      }),
    )
  })

  test('reads in a later turn what an earlier turn of the same convo was shown in part', async () => {
    const convoId = await openConvo(stage, 'bot')
    raw.answer('first turn', callsTool('lines', {}), says('seen'))
    await endOf(stage, await startTurnOf(stage, convoId, 'first turn'))
    raw.answer('second turn', readsOn('second turn'))
    const jobId = await startTurnOf(stage, convoId, 'second turn')
    expect(await endOf(stage, jobId)).toMatchObject({ result: 'all read' })
    expect(putTogether(readOf('second turn')) === LINES).toBe(true)
  })
})

describe('COST-11 SEC-5: a sub-agent’s result over the limit', () => {
  test('of a sync spawn is short in the parent’s journal, stream and request; the whole stays in the child’s row', async () => {
    raw.answer('delegate', callsTool('spawnAgent', spawnOf('bot', 'write long')), readsOn('delegate'))
    raw.answer('write long', says(LINES))
    const job = await runRoot(stage, 'bot', 'delegate')
    expect(job.result).toBe('all read')
    const [child] = await childrenOf(stage, job.id)
    expect(child?.result === LINES).toBe(true)
    const read = readOf('delegate')
    const shown: unknown = JSON.parse(read[0]?.output ?? '')
    expect(shown).toMatchObject({ state: 'completed', jobId: child?.id })
    const result = String(Object(shown).result)
    expect(result.length).toBeLessThanOrEqual(MAX_RESULT_LENGTH)
    expect(putTogether([{ callId: '', output: result }, ...read.slice(1)]) === LINES).toBe(true)
    expect((await answerOf(stage, job.id)).find((part) => part.type === 'tool-spawnAgent')).toMatchObject({
      output: { result, resultTruncated: true, messages: [] },
    })
    expect(await stage.runtime.database.blob.count({ where: { jobId: job.id } })).toBe(0)
  })

  test('comes short into the inbox of a parent that is notified', async () => {
    raw.answer(
      'notify me',
      callsTool('spawnAgent', spawnOf('bot', 'write later', { mode: 'async', notifyParent: true })),
      async (reply) => {
        await waitUntil(
          async () => (await stage.runtime.database.inboxItem.count({ where: { kind: 'childOutcome' } })) > 0,
        )
        reply.call('plain', {}, 'call_plain')
        reply.finish()
      },
    )
    raw.answer('write later', says(LINES))
    raw.answer(/^\[outcome of your sub-agent /, says('heard'))
    const { id } = await spawnRoot(stage, 'bot', 'notify me')
    const outcome = await waitUntil(() => stage.runtime.database.inboxItem.findFirst({ where: { jobId: id } }))
    const text = String((decodeStored(outcome.parts) as { text: string }[])[0]?.text)
    expect(text.length).toBeLessThan(1.2 * MAX_RESULT_LENGTH)
    const [child] = await childrenOf(stage, id)
    expect(await endOf(stage, id)).toMatchObject({ result: 'heard' })
    expect(hintIn(text)?.ref).toBe(child?.id)
  })

  test('is short in checkAgent’s answer to a running job, which leaves long messages out', async () => {
    raw.answer(
      'check it',
      callsTool('spawnAgent', spawnOf('bot', 'write for check', { mode: 'async' })),
      (reply) => {
        const { jobId } = JSON.parse(readOf('check it')[0]?.output ?? '{}') as { jobId: string }
        reply.call('checkAgent', { jobId, waitSeconds: 20 }, 'call_check')
        reply.finish()
      },
      (reply) => {
        const { jobId } = JSON.parse(readOf('check it')[0]?.output ?? '{}') as { jobId: string }
        reply.call('abortAgent', { jobId }, 'call_abort')
        reply.finish()
      },
      says('checked'),
    )
    raw.answer('write for check', says(LINES))
    const job = await runRoot(stage, 'bot', 'check it')
    expect(job.result).toBe('checked')
    const [, checked, aborted] = readOf('check it')
    for (const read of [checked, aborted]) {
      expect(read?.output.length).toBeLessThan(1.1 * MAX_RESULT_LENGTH)
      expect(read?.output).toContain(`of ${LINES.length} characters are left out here.`)
    }
    const part = (await answerOf(stage, job.id)).find((each) => each.type === 'tool-checkAgent')
    expect(part).toMatchObject({ output: { state: 'completed', resultTruncated: true, steps: 1 } })
    expect(Object(Object(part).output)).not.toHaveProperty('messages')
    expect(JSON.stringify(part).length).toBeLessThan(1.2 * MAX_RESULT_LENGTH)
  })
})
