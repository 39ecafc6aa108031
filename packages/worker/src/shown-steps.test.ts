// What viewers see of a step is what they would see of the same step of the SDK's own stream.
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import {
  dynamicTool,
  generateText,
  isStepCount,
  streamText,
  tool,
  type ToolSet,
  toUIMessageChunk,
  type UIMessageChunk,
  wrapLanguageModel,
} from 'ai'
import { MockLanguageModelV4 } from 'ai/test'
import { expect, test } from 'vitest'
import { z } from 'zod'
import { wholeOutput } from './recorded-output.ts'
import { createRunState } from './run-state.ts'
import { type ShownStep, showSteps } from './shown-steps.ts'

type Part = LanguageModelV4StreamPart

const inputSchema = z.object({ at: z.string().default('it') })

function throws(): never {
  throw new Error('a bug in a schema')
}

const TOOLS: ToolSet = {
  look: tool({ title: 'Look', inputSchema, execute: ({ at }) => `saw ${at}` }),
  fail: dynamicTool({ inputSchema, execute: () => Promise.reject(new Error('too dark')) }),
  ask: tool({ inputSchema }),
  idle: tool({ inputSchema, execute: () => 'never' }),
  odd: tool({ inputSchema: inputSchema.refine(() => throws()) }),
}

const ACTIVE = Object.keys(TOOLS).filter((name) => name !== 'idle')

const metadata = (n: number) => ({ mock: { n } })

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
}

const call = (toolCallId: string, toolName: string, input: string): Part[] => [
  { type: 'tool-input-start', id: toolCallId, toolName },
  { type: 'tool-input-delta', id: toolCallId, delta: input },
  { type: 'tool-input-end', id: toolCallId },
  { type: 'tool-call', toolCallId, toolName, input, providerMetadata: metadata(9) },
]

const SAID: Part[] = [
  { type: 'stream-start', warnings: [] },
  { type: 'response-metadata', id: 'r', modelId: 'm', timestamp: new Date(0) },
  { type: 'reasoning-start', id: '0', providerMetadata: metadata(1) },
  { type: 'reasoning-delta', id: '0', delta: 'hm' },
  { type: 'reasoning-end', id: '0', providerMetadata: metadata(2) },
  { type: 'tool-call', toolCallId: 'search', toolName: 'web', input: '{"q":1}', providerExecuted: true, dynamic: true },
  { type: 'tool-result', toolCallId: 'search', toolName: 'web', result: { found: 1 }, dynamic: true },
  { type: 'tool-call', toolCallId: 'bad', toolName: 'web', input: '{', providerExecuted: true, dynamic: true },
  { type: 'tool-result', toolCallId: 'bad', toolName: 'web', result: 'no', isError: true, dynamic: true },
  { type: 'tool-call', toolCallId: 'wish', toolName: 'web', input: '{}', providerExecuted: true, dynamic: true },
  { type: 'tool-approval-request', approvalId: 'p', toolCallId: 'wish' },
  { type: 'text-start', id: '1' },
  { type: 'text-delta', id: '1', delta: '' },
  { type: 'text-delta', id: '1', delta: 'Look' },
  { type: 'text-delta', id: '1', delta: '!' },
  { type: 'text-end', id: '1', providerMetadata: metadata(3) },
  { type: 'file', mediaType: 'image/png', data: { type: 'data', data: 'AAAA' } },
  { type: 'source', sourceType: 'url', id: 's', url: 'https://example.com' },
  { type: 'custom', kind: 'mock.thing', providerMetadata: metadata(4) },
  ...call('a', 'look', '{}'),
  ...call('b', 'fail', '{"at":"sea"}'),
  ...call('c', 'look', '{"at":1}'),
  ...call('d', 'nothing', '{}'),
  ...call('e', 'ask', '{"at":"you"}'),
  ...call('f', 'odd', '{}'),
  ...call('g', 'idle', '{}'),
  ...call('h', 'constructor', '{}'),
  ...call('i', 'look', '{"at":"x","__proto__":{"a":1}}'),
  ...call('j', 'look', '{"constructor":"x"}'),
  { type: 'finish', usage, finishReason: { unified: 'tool-calls', raw: 'tool_calls' } },
]

/** As the SDK's own stream tells it. */
async function framesOfSdk(parts: Part[]): Promise<UIMessageChunk[]> {
  const model = new MockLanguageModelV4({ doStream: async () => ({ stream: ReadableStream.from(parts) }) })
  const { stream } = streamText({ model, prompt: 'hi', tools: TOOLS, activeTools: ACTIVE, stopWhen: isStepCount(1) })
  const chunks: UIMessageChunk[] = []
  for await (const part of stream) {
    const chunk = toUIMessageChunk(part, { tools: TOOLS, sendStart: false, sendFinish: false })
    if (chunk !== undefined) chunks.push(chunk)
  }
  return chunks
}

/** As the journal's middleware and a segment tell it. */
async function shownFrames(parts: Part[], step: Partial<ShownStep> = {}) {
  const chunks: UIMessageChunk[] = []
  const live = { write: (chunk: UIMessageChunk) => void chunks.push(chunk) }
  const state = createRunState({
    steps: [],
    toolCalls: [],
    inbox: [],
    maxSteps: 5,
    inboxMessage: () => ({ role: 'user', content: '' }),
  })
  const shown = showSteps({ agent: { tools: TOOLS }, live, state })
  const model = wrapLanguageModel({
    model: new MockLanguageModelV4(),
    middleware: {
      specificationVersion: 'v4',
      async wrapGenerate() {
        for (const part of parts) shown.part(part)
        const output = wholeOutput(parts)
        if (step.playedBack !== true) await shown.calls(output.content)
        return output
      },
    },
  })
  shown.begin({ index: 0, playedBack: false, activeTools: ACTIVE, withoutTools: false, ...step })
  await generateText({
    model,
    prompt: 'hi',
    tools: TOOLS,
    activeTools: ACTIVE,
    stopWhen: isStepCount(1),
    onLanguageModelCallEnd: shown.callEnd,
    onToolExecutionEnd: ({ toolOutput }) => shown.toolEnd(toolOutput),
  })
  shown.end()
  return { chunks, state }
}

/** Frames of a tool call come in their own order, whatever else is said in between. */
function byCall(chunks: readonly UIMessageChunk[]) {
  const calls: Record<string, UIMessageChunk[]> = {}
  for (const chunk of chunks) if ('toolCallId' in chunk) (calls[chunk.toolCallId] ??= []).push(chunk)
  return calls
}

const isFile = (chunk: UIMessageChunk) => chunk.type === 'file'
const isOfCall = (chunk: UIMessageChunk) => 'toolCallId' in chunk

test('viewers see of a step what the SDK’s stream would show them', async () => {
  const [sdk, { chunks, state }] = [await framesOfSdk(SAID), await shownFrames(SAID)]
  expect(byCall(chunks)).toEqual(byCall(sdk))
  const rest = (all: readonly UIMessageChunk[]) => all.filter((chunk) => !isOfCall(chunk) && !isFile(chunk))
  expect(rest(chunks)).toEqual(rest(sdk))
  expect(chunks.filter(isFile)).toEqual(sdk.filter(isFile))
  expect(sdk.filter(isFile)).toHaveLength(1)
  expect(state.cutText()).toBe('Look!')
  const outcomes = state.toolCalls.map(({ toolCallId, outcome }) => [toolCallId, Object.keys(outcome ?? {})[0]])
  const failed = ['b', 'bad', 'c', 'd', 'f', 'g', 'h', 'i']
  expect(Object.fromEntries(outcomes)).toEqual({
    ...Object.fromEntries(failed.map((id) => [id, 'error'])),
    search: 'output',
    a: 'output',
    j: 'output',
  })
})

test('what the provider runs itself is shown while the model still speaks', async () => {
  const { chunks } = await shownFrames(SAID)
  const types = chunks.map(({ type }) => type)
  expect(types.indexOf('tool-output-available')).toBeLessThan(types.indexOf('text-start'))
})

test('of a step that is played back viewers see the results, which calls are none, and its end', async () => {
  const { chunks, state } = await shownFrames(SAID, { playedBack: true })
  const seen = chunks.map((chunk) => ('toolCallId' in chunk ? `${chunk.type} ${chunk.toolCallId}` : chunk.type))
  const malformed = ['c', 'd', 'f', 'g', 'h', 'i']
  expect(seen.toSorted()).toEqual([
    'finish-step',
    ...malformed.map((id) => `tool-input-error ${id}`),
    'tool-output-available a',
    'tool-output-available j',
    ...['b', ...malformed].map((id) => `tool-output-error ${id}`),
  ])
  expect(state.toolCalls.map(({ toolCallId }) => toolCallId).toSorted()).toEqual([
    'a',
    'b',
    'bad',
    ...malformed,
    'j',
    'search',
  ])
})

test('of a step without tools no call is shown', async () => {
  const { chunks } = await shownFrames(SAID, { withoutTools: true })
  expect(chunks.filter(isOfCall).every(({ type }) => type.startsWith('tool-output'))).toBe(true)
})
