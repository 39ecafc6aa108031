import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { createMergeWindow } from './merge-window.ts'
import { createEventMerger } from './merged-events.ts'
import type { TextTap } from './text-tap.ts'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

const event = (data: { type: string } & Record<string, unknown>) =>
  `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`
const text = (delta: string, more: Record<string, unknown> = {}) =>
  event({ type: 'response.output_text.delta', item_id: 'm', output_index: 0, content_index: 0, delta, ...more })
const call = (delta: string) =>
  event({ type: 'response.function_call_arguments.delta', item_id: 'f', output_index: 1, delta })
const added = event({ type: 'response.output_item.added', output_index: 0, item: { type: 'message', id: 'm' } })
const completed = event({ type: 'response.completed', response: { usage: { input_tokens: 1, output_tokens: 2 } } })

/** A merger that the test feeds, and what has come of it. */
function open(tap?: TextTap) {
  const window = createMergeWindow({ chunkMs: 60_000 })
  const got: string[] = []
  const merger = createEventMerger(window, (sent) => void got.push(sent), tap)
  const feed = (bytes: string | Uint8Array) =>
    merger.take(typeof bytes === 'string' ? new TextEncoder().encode(bytes) : bytes)
  return { feed, got: () => got.join(''), end: merger.end, drop: merger.drop }
}

test('the first delta goes through at once, what follows within the window as one event', async () => {
  const { feed, got } = open()
  feed(added + text('one ') + text('two ', { sequence_number: 7 }))
  feed(text('three ', { obfuscation: 'xy' }))
  expect(got()).toBe(added + text('one '))
  await vi.advanceTimersByTimeAsync(40)
  expect(got()).toBe(added + text('one ') + text('two three ', { sequence_number: 7 }))
})

test('deltas that come further apart than the window all go through at once', async () => {
  const { feed, got } = open()
  for (const word of ['a ', 'b ', 'c ']) {
    feed(text(word))
    await vi.advanceTimersByTimeAsync(50)
  }
  expect(got()).toBe(text('a ') + text('b ') + text('c '))
})

test('any other event, and the end, bring what is held along before them, at once', async () => {
  const { feed, got, end } = open()
  feed(text('one ') + text('two ') + completed)
  expect(got()).toBe(text('one ') + text('two ') + completed)
  feed(text('three') + text('four'))
  end()
  expect(got()).toBe(text('one ') + text('two ') + completed + text('threefour'))
})

test('deltas of different texts and those with something of their own are not joined', async () => {
  const { feed, got, end } = open()
  const events = [
    text('a'),
    text('b', { content_index: 1 }),
    text('c', { item_id: 'n' }),
    text('d', { item_id: 'n', logprobs: [{ token: 'd', logprob: -1 }] }),
    text('e', { item_id: 'n', annotations: [] }),
    call('{'),
  ]
  feed(events.join(''))
  end()
  expect(got()).toBe(events.join(''))
})

test('events that are cut anywhere, in the middle of a character too, come whole; what is no such event passes as it is', async () => {
  const { feed, got, end } = open()
  const all = `: a comment\n\n${text('one ')}${text('größer 😀 ')}${text('two')}data: [DONE]\n\nevent: odd\r\ndata: {"delta"\r\n\r\nrest`
  for (const byte of new TextEncoder().encode(all)) feed(Uint8Array.of(byte))
  end()
  expect(got()).toBe(all.replace(text('größer 😀 ') + text('two'), text('größer 😀 two')))
})

test.each(['\r\n', '\r'])(
  'events whose lines end in %j come at once, and are joined where that is known',
  async (lineEnd) => {
    const { feed, got } = open()
    const asSent = (events: string) => events.replaceAll('\n', lineEnd)
    const first = asSent(`: ping\n\n${added}${text('one ')}`)
    for (const byte of new TextEncoder().encode(first)) feed(Uint8Array.of(byte))
    expect(got()).toBe(first)
    feed(asSent(text('two ') + text('three')))
    feed(asSent(completed))
    const joined = lineEnd === '\r' ? asSent(text('two ') + text('three')) : text('two three')
    expect(got()).toBe(first + joined + asSent(completed))
  },
)

test('the end sends a part of an event, too; after it, or once dropped, nothing is sent', async () => {
  const { feed, got, end } = open()
  feed(text('a') + text('b') + 'data: cut')
  end()
  feed(text('c'))
  expect(got()).toBe(text('a') + text('b') + 'data: cut')
  const left = open()
  left.feed(text('a') + text('b'))
  left.drop()
  await vi.advanceTimersByTimeAsync(100)
  expect(left.got()).toBe(text('a'))
})

test('a tap hears a text at the end of each window; the text goes on in one piece, once something else comes', async () => {
  const heard: unknown[] = []
  const { feed, got } = open((...piece) => heard.push(piece) > 0)
  feed(added + text('one ') + text('two ') + text('three '))
  expect([got(), heard]).toEqual([added + text('one '), []])
  await vi.advanceTimersByTimeAsync(40)
  expect(heard).toEqual([['m', 4, 'two three ']])
  await vi.advanceTimersByTimeAsync(1_000)
  feed(text('four '))
  expect(heard.slice(1)).toEqual([['m', 14, 'four ']])
  feed(text('five '))
  expect(got()).toBe(added + text('one '))
  feed(completed)
  expect(got()).toBe(added + text('one ') + text('two three four five ') + completed)
  expect(heard).toHaveLength(2)
})

test('a tap hears a text whose deltas come one by one, each at once', async () => {
  const heard: unknown[] = []
  const { feed, got } = open((...piece) => heard.push(piece) > 0)
  for (const word of ['one ', 'two ', 'three ']) {
    feed(text(word))
    await vi.advanceTimersByTimeAsync(50)
  }
  feed(completed)
  expect(heard).toEqual([
    ['m', 4, 'two '],
    ['m', 8, 'three '],
  ])
  expect(got()).toBe(text('one ') + text('two three ') + completed)
})

test('what a tap does not want goes on as without it, and it is told how much of the text it has missed', async () => {
  const heard: unknown[] = []
  const { feed, got, end } = open((...piece) => heard.push(piece) > 1)
  feed(text('one ') + text('two '))
  await vi.advanceTimersByTimeAsync(40)
  expect([got(), heard]).toEqual([text('one ') + text('two '), [['m', 4, 'two ']]])
  feed(text('three '))
  await vi.advanceTimersByTimeAsync(40)
  expect([got(), heard[1]]).toEqual([text('one ') + text('two '), ['m', 8, 'three ']])
  end()
  expect(got()).toBe(text('one ') + text('two ') + text('three '))
})

test('a tap hears nothing of reasoning and of calls, nor anything once nobody reads', async () => {
  const heard: unknown[] = []
  const { feed, got, drop } = open((...piece) => heard.push(piece) > 0)
  feed(call('{') + call('}'))
  await vi.advanceTimersByTimeAsync(40)
  expect([got(), heard]).toEqual([call('{') + call('}'), []])
  feed(text('one ') + text('two '))
  drop()
  await vi.advanceTimersByTimeAsync(100)
  expect(heard).toEqual([])
})
