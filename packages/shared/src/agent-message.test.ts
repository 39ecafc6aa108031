import type { ModelMessage } from 'ai'
import { expect, test } from 'vitest'
import { agentMessageParts, cutMessageParts, lastStepText, openCalls, stepText } from './agent-message.ts'
import type { StoredStep, StoredToolCall } from './db/journal.ts'

const step = (index: number, responseMessages: ModelMessage[] | null): StoredStep => ({
  index,
  finishReason: 'stop',
  usage: null,
  modelOutput: [],
  responseMessages,
})
const said = (text: string): ModelMessage => ({ role: 'assistant', content: [{ type: 'text', text }] })
const called = (toolCallId: string, toolName = 'search', input: unknown = { q: 1 }): ModelMessage => ({
  role: 'assistant',
  content: [{ type: 'tool-call', toolCallId, toolName, input }],
})
type ToolContent = Extract<ModelMessage, { role: 'tool' }>['content'][number]
const answered = (
  toolCallId: string,
  output: Extract<ToolContent, { type: 'tool-result' }>['output'],
): ModelMessage => ({
  role: 'tool',
  content: [{ type: 'tool-result', toolCallId, toolName: 'search', output }],
})
const stored = (toolCallId: string, outcome?: StoredToolCall['outcome'], stepIndex = 0): StoredToolCall => ({
  stepIndex,
  toolCallId,
  toolName: 'search',
  ...(outcome === undefined ? {} : { outcome }),
})

test('each whole step begins a step of the message; one whose results are not all stored is left out', () => {
  const steps = [step(0, [said('first')]), step(1, [{ role: 'assistant', content: 'second' }]), step(2, null)]
  expect(agentMessageParts(steps, [])).toEqual([
    { type: 'step-start' },
    { type: 'text', text: 'first', state: 'done' },
    { type: 'step-start' },
    { type: 'text', text: 'second', state: 'done' },
  ])
})

test('LOSS-3: the text of a cut step comes last', () => {
  expect(agentMessageParts([step(0, [said('whole')])], [], 'and the be')).toEqual([
    { type: 'step-start' },
    { type: 'text', text: 'whole', state: 'done' },
    { type: 'step-start' },
    { type: 'text', text: 'and the be', state: 'done' },
  ])
  expect(agentMessageParts([], [], '')).toEqual([])
})

test("a tool call shows the tool's own output from its row, not what the model was told of it", () => {
  const steps = [step(0, [called('c1'), answered('c1', { type: 'text', value: 'short' })])]
  expect(agentMessageParts(steps, [stored('c1', { output: { long: true } })])).toEqual([
    { type: 'step-start' },
    { type: 'tool-search', toolCallId: 'c1', input: { q: 1 }, state: 'output-available', output: { long: true } },
  ])
})

test('STATE-10: a tool call id that is used again in a later step finds the output of its own step', () => {
  const steps = [0, 1].map((index) => step(index, [called('call_0'), answered('call_0', { type: 'text', value: 't' })]))
  const parts = agentMessageParts(steps, [
    stored('call_0', { output: 'one' }, 0),
    stored('call_0', { output: 'two' }, 1),
  ])
  expect(parts.map((part) => ('output' in part ? part.output : part.type))).toEqual([
    'step-start',
    'one',
    'step-start',
    'two',
  ])
})

test('without a row the result in the messages speaks, errors as errors', () => {
  const outputs: [Parameters<typeof answered>[1], object][] = [
    [
      { type: 'json', value: { a: 1 } },
      { state: 'output-available', output: { a: 1 } },
    ],
    [
      { type: 'text', value: 'plain' },
      { state: 'output-available', output: 'plain' },
    ],
    [
      { type: 'error-text', value: 'broke' },
      { state: 'output-error', errorText: 'broke' },
    ],
    [
      { type: 'error-json', value: { code: 5 } },
      { state: 'output-error', errorText: '{"code":5}' },
    ],
    [
      { type: 'execution-denied', reason: 'not now' },
      { state: 'output-error', errorText: 'not now' },
    ],
    [{ type: 'execution-denied' }, { state: 'output-error', errorText: 'The call was denied.' }],
  ]
  for (const [output, shown] of outputs)
    expect(agentMessageParts([step(0, [called('c'), answered('c', output)])], [])[1]).toMatchObject(shown)
})

test('STATE-12: a call without any result is closed with an error', () => {
  const steps = [step(0, [called('open')])]
  expect(agentMessageParts(steps, [stored('open')])[1]).toMatchObject({
    state: 'output-error',
    errorText: 'The call has no result.',
  })
})

const cutStep: StoredStep = {
  ...step(1, null),
  modelOutput: [
    { type: 'text-start', id: 't' },
    { type: 'text-delta', id: 't', delta: 'Let me ' },
    { type: 'text-delta', id: 't', delta: 'look.' },
    { type: 'text-end', id: 't' },
    {
      type: 'tool-call',
      toolCallId: 'a',
      toolName: 'search',
      input: '{"q":1}',
      providerMetadata: { openai: { id: 'x' } },
    },
    { type: 'tool-call', toolCallId: 'b', toolName: 'search', input: 'no JSON' },
    { type: 'tool-call', toolCallId: 'c', toolName: 'search', input: '{}' },
    { type: 'tool-call', toolCallId: 'd', toolName: 'web', input: '{}', providerExecuted: true },
  ],
}

test('STATE-12 LOSS-3: a step that was cut shows what it said, and one result for each of its calls', () => {
  const calls = [
    stored('a', { output: undefined }, 1),
    stored('b', { error: new Error('no') }, 1),
    stored('c', undefined, 1),
  ]
  // The same id in an earlier step is another call.
  const earlier = stored('c', { output: 'of step 0' })
  expect(cutMessageParts([step(0, [said('first')]), cutStep], [earlier, ...calls], 'seen and not stored')).toEqual([
    { type: 'step-start' },
    { type: 'text', text: 'first', state: 'done' },
    { type: 'step-start' },
    { type: 'text', text: 'Let me look.', state: 'done' },
    { type: 'tool-search', toolCallId: 'a', input: { q: 1 }, state: 'output-available', output: null },
    { type: 'tool-search', toolCallId: 'b', input: 'no JSON', state: 'output-error', errorText: 'Error: no' },
    {
      type: 'tool-search',
      toolCallId: 'c',
      input: {},
      state: 'output-error',
      errorText: expect.stringMatching(/^The call was cut off .* may have taken effect\.$/),
    },
  ])
})

test('LOSS-3: without a stored step that was cut, the text that was seen of one comes last', () => {
  const steps = [step(0, [said('whole')])]
  expect(cutMessageParts(steps, [], 'and the be')).toEqual(agentMessageParts(steps, [], 'and the be'))
  expect(cutMessageParts([], [], '')).toEqual([])
})

test('LOSS-3: the partial result is the text of the step that was cut, if it said something', () => {
  expect(lastStepText([step(0, [said('first')]), cutStep])).toBe('Let me look.')
  expect(lastStepText([step(0, [said('first')]), { ...cutStep, modelOutput: [] }])).toBe('first')
})

test('a stored error of a tool shows as the error that the model was told', () => {
  const steps = [step(0, [called('c'), answered('c', { type: 'error-text', value: 'disk full' })])]
  const parts = agentMessageParts(steps, [stored('c', { error: new Error('disk full') })])
  expect(parts[1]).toMatchObject({ state: 'output-error', errorText: 'disk full' })
})

test('STATE-24: an output of null or undefined is an output', () => {
  const steps = [step(0, [called('c'), answered('c', { type: 'json', value: null })])]
  for (const output of [null, undefined])
    expect(agentMessageParts(steps, [stored('c', { output })])[1]).toMatchObject({
      state: 'output-available',
      output: null,
    })
})

test('STATE-19: reasoning, text and calls keep their provider metadata', () => {
  const metadata = { openai: { itemId: 'rs_1', reasoningEncryptedContent: 'gAAA' } }
  const steps = [
    step(0, [
      {
        role: 'assistant',
        content: [
          { type: 'reasoning', text: 'hm', providerOptions: metadata },
          { type: 'text', text: 'so', providerOptions: metadata },
          { type: 'tool-call', toolCallId: 'c', toolName: 'search', input: {}, providerOptions: metadata },
        ],
      },
    ]),
  ]
  expect(agentMessageParts(steps, [])).toMatchObject([
    { type: 'step-start' },
    { type: 'reasoning', text: 'hm', providerMetadata: metadata },
    { type: 'text', text: 'so', providerMetadata: metadata },
    { type: 'tool-search', callProviderMetadata: metadata },
  ])
})

test('STATE-21: the result is the text of the last whole step, never that of an earlier one', () => {
  expect(lastStepText([step(0, [said('one')]), step(1, [said('two '), said('three')])])).toBe('two three')
  expect(lastStepText([step(0, [said('one')]), step(1, [called('c')])])).toBeNull()
  expect(lastStepText([step(0, [said('one')]), step(1, null)])).toBe('one')
  expect(lastStepText([])).toBeNull()
  expect(
    stepText(step(0, [{ role: 'assistant', content: 'plain' }, answered('c', { type: 'text', value: 'x' })])),
  ).toBe('plain')
})

test("open calls are those without a result, in the model's order, without the provider's own", () => {
  const messages: ModelMessage[] = [
    {
      role: 'assistant',
      content: [
        { type: 'tool-call', toolCallId: 'a', toolName: 'spawnAgent', input: { message: 'x' } },
        { type: 'tool-call', toolCallId: 'b', toolName: 'search', input: {} },
        { type: 'tool-call', toolCallId: 'c', toolName: 'web_search', input: {}, providerExecuted: true },
        { type: 'tool-call', toolCallId: 'd', toolName: 'spawnAgent', input: {} },
      ],
    },
    answered('b', { type: 'text', value: 'found' }),
  ]
  expect(openCalls(messages)).toEqual([
    { toolCallId: 'a', toolName: 'spawnAgent', input: { message: 'x' } },
    { toolCallId: 'd', toolName: 'spawnAgent', input: {} },
  ])
  expect(openCalls([said('no call'), { role: 'user', content: 'x' }])).toEqual([])
})
