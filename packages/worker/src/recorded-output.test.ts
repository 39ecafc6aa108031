import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { expect, test } from 'vitest'
import { createOutputRecorder, streamOf, toUsage } from './recorded-output.ts'

const usage = (input?: number, output?: number, reasoning?: number) => ({
  inputTokens: { total: input, noCache: undefined, cacheRead: undefined, cacheWrite: undefined },
  outputTokens: { total: output, text: undefined, reasoning },
})

const finish: LanguageModelV4StreamPart = {
  type: 'finish',
  usage: usage(1, 2),
  finishReason: { unified: 'stop', raw: undefined },
}

function record(parts: LanguageModelV4StreamPart[]): LanguageModelV4StreamPart[] {
  const recorder = createOutputRecorder()
  for (const part of parts) recorder.add(part)
  return recorder.parts()
}

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

test('an error among the parts is remembered', () => {
  const recorder = createOutputRecorder()
  recorder.add({ type: 'text-delta', id: 'a', delta: 'x' })
  expect(recorder.hasError()).toBe(false)
  recorder.add({ type: 'error', error: 'overloaded' })
  expect(recorder.hasError()).toBe(true)
})

test('LOSS-19: counts that are no numbers, or too large for any, are unknown', () => {
  expect(toUsage(usage(Number.NaN, 1e300, -1))).toEqual(toUsage(usage()))
})

test('stored parts come back as a stream, in their order', async () => {
  const parts: LanguageModelV4StreamPart[] = [{ type: 'text-start', id: 'a' }, finish]
  const seen: LanguageModelV4StreamPart[] = []
  for await (const part of streamOf(parts)) seen.push(part)
  expect(seen).toEqual(parts)
})

test('STATE-18: tokens that are unknown stay unknown, and zero is zero', () => {
  expect(toUsage(usage())).toEqual({ inputTokens: null, outputTokens: null, reasoningTokens: null, totalTokens: null })
  expect(toUsage(usage(0, 0, 0))).toEqual({ inputTokens: 0, outputTokens: 0, reasoningTokens: 0, totalTokens: 0 })
  expect(toUsage(usage(7, undefined))).toMatchObject({ inputTokens: 7, outputTokens: null, totalTokens: 7 })
})
