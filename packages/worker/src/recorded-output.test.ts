import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { expect, test } from 'vitest'
import { UnusableFinishError } from './model-errors.ts'
import { createOutputRecorder, toUsage, wholeOutput } from './recorded-output.ts'

const usage = (input?: number, output?: number, reasoning?: number) => ({
  inputTokens: { total: input, noCache: undefined, cacheRead: undefined, cacheWrite: undefined },
  outputTokens: { total: output, text: undefined, reasoning },
})

const finish: Extract<LanguageModelV4StreamPart, { type: 'finish' }> = {
  type: 'finish',
  usage: usage(1, 2),
  finishReason: { unified: 'stop', raw: undefined },
}

function record(parts: LanguageModelV4StreamPart[]): LanguageModelV4StreamPart[] {
  const recorder = createOutputRecorder()
  for (const part of parts) recorder.add(part)
  return recorder.parts()
}

const metadata = (n: number) => ({ openai: { n } })

test('the deltas of each id become one, where the first of them stood', () => {
  expect(
    record([
      { type: 'text-start', id: 'a' },
      { type: 'text-delta', id: 'a', delta: 'Hel' },
      { type: 'text-delta', id: 'a', delta: 'lo' },
      { type: 'text-end', id: 'a' },
      finish,
    ]),
  ).toEqual([
    { type: 'text-start', id: 'a' },
    { type: 'text-delta', id: 'a', delta: 'Hello' },
    { type: 'text-end', id: 'a' },
    finish,
  ])
})

test('deltas of two ids that alternate stay apart, and the order of the parts is kept', () => {
  const parts = record([
    { type: 'reasoning-start', id: 'r' },
    { type: 'text-start', id: 't' },
    { type: 'reasoning-delta', id: 'r', delta: 'hm' },
    { type: 'text-delta', id: 't', delta: 'A' },
    { type: 'reasoning-delta', id: 'r', delta: ' well' },
    { type: 'text-delta', id: 't', delta: 'B' },
    { type: 'reasoning-end', id: 'r' },
    { type: 'text-end', id: 't' },
  ])
  expect(parts.map((part) => part.type)).toEqual([
    'reasoning-start',
    'text-start',
    'reasoning-delta',
    'text-delta',
    'reasoning-end',
    'text-end',
  ])
  expect(parts[2]).toMatchObject({ delta: 'hm well' })
  expect(parts[3]).toMatchObject({ delta: 'AB' })
})

test('a text and a tool input with the same id are two things', () => {
  expect(
    record([
      { type: 'text-delta', id: '0', delta: 'text' },
      { type: 'tool-input-delta', id: '0', delta: '{"a":' },
      { type: 'tool-input-delta', id: '0', delta: '1}' },
    ]),
  ).toEqual([
    { type: 'text-delta', id: '0', delta: 'text' },
    { type: 'tool-input-delta', id: '0', delta: '{"a":1}' },
  ])
})

test('STATE-19: the last provider metadata of a text stays with it', () => {
  expect(
    record([
      { type: 'text-delta', id: 'a', delta: 'x', providerMetadata: { openai: { part: 1 } } },
      { type: 'text-delta', id: 'a', delta: 'y' },
      { type: 'text-delta', id: 'a', delta: 'z', providerMetadata: { openai: { part: 3 } } },
    ]),
  ).toEqual([{ type: 'text-delta', id: 'a', delta: 'xyz', providerMetadata: { openai: { part: 3 } } }])
})

test('pings and raw chunks are not kept', () => {
  expect(record([{ type: 'raw', rawValue: 1 }, finish])).toEqual([finish])
})

test('the parts that go by are not changed', () => {
  const part: LanguageModelV4StreamPart = { type: 'text-delta', id: 'a', delta: 'x' }
  record([part, { type: 'text-delta', id: 'a', delta: 'y' }])
  expect(part.delta).toBe('x')
})

test('LOSS-19: counts that are no numbers, or too large for any, are unknown', () => {
  expect(toUsage(usage(Number.NaN, 1e300, -1))).toEqual(toUsage(usage()))
})

test.each([true, false])('an id that begins again is another text, whether it has ended (%j) or not', (ends) => {
  const twice = ['one', 'two'].flatMap((delta): LanguageModelV4StreamPart[] => [
    { type: 'text-start', id: '0' },
    { type: 'text-delta', id: '0', delta },
    ...(ends ? [{ type: 'text-end', id: '0' } as const] : []),
  ])
  expect(record(twice)).toEqual(twice)
  expect(wholeOutput([...twice, finish]).content).toEqual([
    { type: 'text', text: 'one' },
    { type: 'text', text: 'two' },
  ])
})

test('STATE-19: a whole output has its texts, reasoning and calls in the order in which they began, with their metadata', () => {
  const timestamp = new Date(0)
  const call = { type: 'tool-call', toolCallId: 'c', toolName: 'look', input: '{}' } as const
  expect(
    wholeOutput([
      { type: 'stream-start', warnings: [{ type: 'other', message: 'hm' }] },
      { type: 'response-metadata', id: 'r1', modelId: 'm', timestamp },
      { type: 'reasoning-start', id: 'r', providerMetadata: metadata(1) },
      { type: 'text-start', id: 't' },
      { type: 'reasoning-delta', id: 'r', delta: 'well' },
      { type: 'text-delta', id: 't', delta: 'Hel' },
      { type: 'tool-input-start', id: 'c', toolName: 'look' },
      call,
      { type: 'text-delta', id: 't', delta: 'lo' },
      { type: 'reasoning-end', id: 'r', providerMetadata: metadata(2) },
      { type: 'text-end', id: 't', providerMetadata: metadata(3) },
      { ...finish, providerMetadata: metadata(4) },
    ]),
  ).toEqual({
    warnings: [{ type: 'other', message: 'hm' }],
    response: { id: 'r1', modelId: 'm', timestamp },
    content: [
      { type: 'reasoning', text: 'well', providerMetadata: metadata(2) },
      { type: 'text', text: 'Hello', providerMetadata: metadata(3) },
      call,
    ],
    finishReason: finish.finishReason,
    usage: finish.usage,
    providerMetadata: metadata(4),
  })
})

test('an output without a finish is no answer', () => {
  expect(() => wholeOutput([{ type: 'text-delta', id: 't', delta: 'half' }])).toThrow(UnusableFinishError)
})

test('STATE-18: tokens that are unknown stay unknown, and zero is zero', () => {
  expect(toUsage(usage())).toEqual({ inputTokens: null, outputTokens: null, reasoningTokens: null, totalTokens: null })
  expect(toUsage(usage(0, 0, 0))).toEqual({ inputTokens: 0, outputTokens: 0, reasoningTokens: 0, totalTokens: 0 })
  expect(toUsage(usage(7, undefined))).toMatchObject({ inputTokens: 7, outputTokens: null, totalTokens: 7 })
})
