import type { ModelMessage } from 'ai'
import { expect, test } from 'vitest'
import type { StoredInboxItem, StoredStep, StoredToolCall } from '@offshoot/shared/db/journal'
import { createRunState } from './run-state.ts'

const call = (toolCallId: string, toolName = 'spawnAgent') => ({
  type: 'tool-call' as const,
  toolCallId,
  toolName,
  input: {},
})

const result = (toolCallId: string, toolName = 'look') => ({
  type: 'tool-result' as const,
  toolCallId,
  toolName,
  output: { type: 'text' as const, value: 'seen' },
})

const said = (text: string): ModelMessage[] => [{ role: 'assistant', content: [{ type: 'text', text }] }]

function step(index: number, finishReason: string, responseMessages: ModelMessage[] | null): StoredStep {
  return { index, finishReason, usage: null, modelOutput: [], responseMessages }
}

/** A step whose one call has its result. */
function toolStep(index: number, finishReason = 'tool-calls'): StoredStep {
  return step(index, finishReason, [
    { role: 'assistant', content: [call(`call_${index}`, 'look')] },
    { role: 'tool', content: [result(`call_${index}`)] },
  ])
}

/** A step as the SDK tells of it. */
function wholeStep(finishReason: string, messages: ModelMessage[] | null, calls: { invalid?: boolean }[] = []) {
  return { finishReason, response: { messages }, toolCalls: calls } as never
}

const item = (seq: number, text: string, consumedAtStep: number | null): StoredInboxItem => ({
  seq: BigInt(seq),
  parts: [{ type: 'text', text }],
  consumedAtStep,
})

const userMessage = (text: string): ModelMessage => ({ role: 'user', content: text })

function stateOf(
  steps: StoredStep[],
  more: { maxSteps?: number; inbox?: StoredInboxItem[]; toolCalls?: StoredToolCall[] } = {},
) {
  return createRunState({
    steps,
    toolCalls: more.toolCalls ?? [],
    inbox: more.inbox ?? [],
    maxSteps: more.maxSteps ?? 25,
    inboxMessage: ({ parts }) => userMessage(parts.map((part) => part.text).join('')),
  })
}

test('a fresh job calls the model for step 0', () => {
  const state = stateOf([])
  expect(state.next(false)).toEqual({ kind: 'call-model' })
  expect(state.nextIndex()).toBe(0)
  expect(state.stepToPlayBack()).toBeUndefined()
  expect(state.messages()).toEqual([])
})

test('after a step whose tools have run the model is called for the next one', () => {
  const state = stateOf([toolStep(0), toolStep(1)])
  expect(state.next(false)).toEqual({ kind: 'call-model' })
  expect(state.nextIndex()).toBe(2)
})

test('a step whose tools have run is followed by another one although its finish reason is stop', () => {
  expect(stateOf([toolStep(0, 'stop')]).next(false)).toEqual({ kind: 'call-model' })
})

test('a text ends the job', () => {
  const last = step(1, 'stop', said('done'))
  expect(stateOf([toolStep(0), last]).next(false)).toEqual({ kind: 'end', step: last })
})

test('after a wait the calls without a result are answered, in their order', () => {
  const last = step(0, 'tool-calls', [
    { role: 'assistant', content: [call('a'), call('b', 'look'), call('c')] },
    { role: 'tool', content: [result('b')] },
  ])
  const move = stateOf([last]).next(false)
  expect(move).toMatchObject({ kind: 'answer-calls', step: last })
  expect(move.kind === 'answer-calls' && move.calls.map(({ toolCallId }) => toolCallId)).toEqual(['a', 'c'])
})

test('calls that the provider runs itself are not ours to answer', () => {
  const last = step(0, 'stop', [
    {
      role: 'assistant',
      content: [
        { ...call('a', 'search'), providerExecuted: true },
        { type: 'text', text: 'found' },
      ],
    },
  ])
  expect(stateOf([last]).next(false)).toEqual({ kind: 'end', step: last })
})

test('once its open calls are answered the job goes on', () => {
  const last = step(0, 'tool-calls', [{ role: 'assistant', content: [call('a')] }])
  const state = stateOf([last])
  const answered: ModelMessage[] = [
    { role: 'assistant', content: [call('a')] },
    { role: 'tool', content: [result('a', 'spawnAgent')] },
  ]
  state.answerCalls(last, answered)
  expect(state.next(false)).toEqual({ kind: 'call-model' })
  expect(state.messages()).toEqual(answered)
})

test('COST-3: after a crash a step that is stored and not whole is played back, at its own number', () => {
  const cut = step(1, 'tool-calls', null)
  const state = stateOf([toolStep(0), cut])
  expect(state.next(false)).toEqual({ kind: 'call-model' })
  expect(state.stepToPlayBack()).toBe(cut)
  expect(state.nextIndex()).toBe(1)
  expect(state.messages()).toEqual(toolStep(0).responseMessages)
})

test('a step that is played back keeps the inbox items that its prompt had', () => {
  const state = stateOf([toolStep(0), step(1, 'tool-calls', null)], {
    inbox: [item(1, 'hurry', 1), item(2, 'later', null)],
  })
  expect(state.messages()).toEqual([...(toolStep(0).responseMessages ?? []), userMessage('hurry')])
})

test('inbox items stand before the answer of the step that read them', () => {
  const state = stateOf([toolStep(0)], { inbox: [item(1, 'first', 0)] })
  state.noteInbox(1, [item(2, 'second', null), item(3, 'third', null)])
  state.addWholeStep(1, wholeStep('stop', said('done')))
  expect(state.messages()).toEqual([
    userMessage('first'),
    ...(toolStep(0).responseMessages ?? []),
    userMessage('second'),
    userMessage('third'),
    ...said('done'),
  ])
})

test('STATE-6: the job ends with its last allowed step, whatever that step says', () => {
  const last = toolStep(1)
  expect(stateOf([toolStep(0), last], { maxSteps: 2 }).next(true)).toEqual({ kind: 'end', step: last })
})

test('STATE-23: calls that were cut at the output limit are answered, then the job ends', () => {
  const last = step(0, 'length', [{ role: 'assistant', content: [call('a', 'look')] }])
  const state = stateOf([last])
  expect(state.next(false)).toMatchObject({ kind: 'answer-calls' })
  state.answerCalls(last, [...(last.responseMessages ?? []), { role: 'tool', content: [result('a')] }])
  expect(state.next(false)).toEqual({ kind: 'end', step: last })
})

test('unread messages give a job that is about to end one more step', () => {
  expect(stateOf([step(0, 'stop', said('done'))]).next(true)).toEqual({ kind: 'call-model' })
})

test.each(['length', 'content-filter'])('unread messages do not prolong a job that ends by %s', (finishReason) => {
  expect(stateOf([step(0, finishReason, said('half'))]).next(true)).toMatchObject({ kind: 'end' })
})

test('unread messages do not prolong a job that has used its steps', () => {
  expect(stateOf([step(0, 'stop', said('done'))], { maxSteps: 1 }).next(true)).toMatchObject({ kind: 'end' })
})

test('STATE-10: the same tool call id in another step is another call', () => {
  const state = stateOf([])
  const known = { stepIndex: 0, toolCallId: 'call_0', toolName: 'look' }
  state.addToolCall(known)
  state.addToolCall({ ...known, stepIndex: 1, outcome: { output: 'second' } })
  state.addToolCall({ ...known, outcome: { output: 'first' } })
  expect(state.toolCalls).toEqual([
    { ...known, outcome: { output: 'first' } },
    { ...known, stepIndex: 1, outcome: { output: 'second' } },
  ])
})

test('a step that was played back becomes whole in its place', () => {
  const state = stateOf([step(0, 'tool-calls', null)])
  state.addWholeStep(0, wholeStep('tool-calls', toolStep(0).responseMessages))
  expect(state.steps).toHaveLength(1)
  expect(state.stepToPlayBack()).toBeUndefined()
  expect(state.nextIndex()).toBe(1)
})

test('the cut text is that of the step under way', () => {
  const state = stateOf([])
  state.beginText()
  state.addText('first step')
  state.beginText()
  state.addText('half ')
  state.addText('a word')
  expect(state.cutText()).toBe('half a word')
})

test('the text of a step that has become whole is not cut text', () => {
  const state = stateOf([])
  state.beginText()
  state.addText('Let me look.')
  state.addWholeStep(0, wholeStep('tool-calls', said('Let me look.')))
  expect(state.cutText()).toBe('')
})

test('STATE-20: five malformed steps in a row end the job, whichever attempt made them', () => {
  const malformed = (index: number) => ({ ...toolStep(index), malformed: true })
  const state = stateOf([toolStep(0), malformed(1), malformed(2), malformed(3), malformed(4)])
  expect(state.next(false)).toEqual({ kind: 'call-model' })
  state.addWholeStep(5, wholeStep('tool-calls', toolStep(5).responseMessages, [{ invalid: true }]))
  expect(state.next(true)).toMatchObject({ kind: 'end', step: { index: 5 } })
  const mixed = stateOf([malformed(0), malformed(1), malformed(2), malformed(3)])
  mixed.addWholeStep(4, wholeStep('tool-calls', toolStep(4).responseMessages, [{ invalid: true }, {}]))
  expect(mixed.next(false)).toEqual({ kind: 'call-model' })
})
