import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { createOutputReader } from './model-output.ts'

type Part = LanguageModelV4StreamPart

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

const text = (delta: string): Part => ({ type: 'text-delta', id: 'a', delta })
const ping: Part = { type: 'raw', rawValue: 'ping' }
const finish: Part = {
  type: 'finish',
  finishReason: { unified: 'stop', raw: 'stop' },
  usage: {
    inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: 1, text: 1, reasoning: 0 },
  },
}

const soon = () => vi.advanceTimersByTimeAsync(0)

/** A reading of a source that the test feeds, and what has come of it. */
function open({ begun = [], onPart }: { begun?: Part[]; onPart?: (part: Part) => void } = {}) {
  let source: ReadableStreamDefaultController<Part> | undefined
  const cancelled: unknown[] = []
  const stream = new ReadableStream<Part>({
    start: (controller) => void (source = controller),
    cancel: (reason) => void cancelled.push(reason),
  })
  const controller = new AbortController()
  const got: Part[] = []
  let outcome: 'whole' | { error: unknown } | undefined
  const said: Part[] = []
  const reader = createOutputReader({
    signal: controller.signal,
    chunkMs: 1_000,
    onPart: onPart ?? ((part) => void got.push(part)),
    onSaid: (part) => void said.push(part),
  })
  void reader.read({ begun, rest: stream.getReader() }).then(
    () => (outcome = 'whole'),
    (error: unknown) => (outcome = { error }),
  )
  return {
    got,
    said,
    tap: reader.tap,
    cancelled,
    controller,
    outcome: () => outcome,
    async feed(...parts: Part[]) {
      for (const part of parts) source?.enqueue(part)
      await soon()
    },
    close: () => source?.close(),
    fail: (error: Error) => source?.error(error),
  }
}

test('each part is told as it comes, those that had come before first', async () => {
  const { feed, got, outcome, close } = open({ begun: [text('a')] })
  await feed(text('b'))
  expect(got).toEqual([text('a'), text('b')])
  expect(outcome()).toBeUndefined()
  await feed(finish)
  expect([got, outcome()]).toEqual([[text('a'), text('b'), finish], 'whole'])
  close()
})

test('a source that ends without a finish is read to its end', async () => {
  const { feed, got, outcome, close } = open()
  await feed(text('a'))
  close()
  await soon()
  expect([got, outcome()]).toEqual([[text('a')], 'whole'])
})

test('a source that breaks, and an error among its parts, end it after what it had said', async () => {
  const reset = new Error('reset')
  const broken = open()
  await broken.feed(text('a'))
  broken.fail(reset)
  await soon()
  expect([broken.got, broken.outcome()]).toEqual([[text('a')], { error: reset }])

  const refused = open()
  await refused.feed(text('a'), { type: 'error', error: 'overloaded' }, text('b'))
  expect(refused.got).toEqual([text('a'), { type: 'error', error: 'overloaded' }])
  expect(refused.outcome()).toEqual({ error: 'overloaded' })
  expect(refused.cancelled).toEqual(['overloaded'])
})

test('a part that is not what it should be fails its own run alone', async () => {
  // What a provider of one's own may send in spite of its type.
  const odd = { type: 'text-delta', id: 'a' } as unknown as Part
  let characters = 0
  const { feed, outcome, cancelled } = open({
    onPart: (part) => void (characters += (part as { delta: string }).delta.length),
  })
  await feed(text('one'), odd)
  expect(outcome()).toEqual({ error: expect.any(TypeError) })
  expect([characters, cancelled]).toEqual([3, [expect.any(TypeError)]])
})

test('a source that is silent for longer than it may, or says only what is no output, is left', async () => {
  const { feed, got, outcome, cancelled } = open()
  await feed(text('a'))
  await vi.advanceTimersByTimeAsync(900)
  await feed(text('b'))
  await vi.advanceTimersByTimeAsync(900)
  await feed(ping)
  expect(outcome()).toBeUndefined()
  await vi.advanceTimersByTimeAsync(101)
  expect(got).toEqual([text('a'), text('b'), ping])
  expect(outcome()).toMatchObject({ error: { message: 'Chunk timeout of 1000ms exceeded' } })
  expect(cancelled).toHaveLength(1)
})

test('a source that stays open after its finish is left in a while, and what it had said is whole', async () => {
  const { feed, outcome, cancelled } = open()
  await feed(text('a'), finish)
  expect(outcome()).toBe('whole')
  await vi.advanceTimersByTimeAsync(999)
  expect(cancelled).toEqual([])
  await vi.advanceTimersByTimeAsync(2)
  expect(cancelled).toEqual([undefined])
})

test('LOSS-3: a source that is stopped gets a moment to say what it still holds', async () => {
  const stop = new Error('stop')
  const { feed, fail, got, outcome, controller, cancelled } = open()
  await feed(text('a'))
  controller.abort(stop)
  await feed(text('b'))
  fail(new Error('aborted'))
  await soon()
  expect([got, outcome(), cancelled]).toEqual([[text('a'), text('b')], { error: stop }, []])
})

test('STUCK-11: a source that does not care that it is stopped is left', async () => {
  const stop = new Error('stop')
  const { feed, got, outcome, controller, cancelled } = open()
  controller.abort(stop)
  await vi.advanceTimersByTimeAsync(99)
  await feed(text('a'))
  expect(outcome()).toBeUndefined()
  await vi.advanceTimersByTimeAsync(1)
  expect([got, outcome(), cancelled]).toEqual([[text('a')], { error: stop }, [stop]])
})

test('pieces of a text that are heard before their part are said once, and the part is whole', async () => {
  const start: Part = { type: 'text-start', id: 'a' }
  const { feed, got, said, tap, outcome } = open({ begun: [start] })
  await feed(text('one '))
  expect([tap('a', 4, 'two '), tap('a', 8, 'three ')]).toEqual([true, true])
  await feed(text('two three four '), text('five'), { type: 'text-end', id: 'a' }, finish)
  const end: Part = { type: 'text-end', id: 'a' }
  expect(got).toEqual([start, text('one '), text('two three four '), text('five'), end, finish])
  expect(said).toEqual([start, text('one '), text('two '), text('three '), text('four '), text('five'), end, finish])
  expect(outcome()).toBe('whole')
  expect(tap('a', 19, 'six')).toBe(false)
})

test('a piece is not heard of a text that is unknown or has ended, nor one that does not follow what was said', async () => {
  const { feed, said, tap } = open({ begun: [{ type: 'text-start', id: 'a' }] })
  await feed(text('one '))
  expect([tap('b', 0, 'x'), tap('a', 0, 'x'), tap('a', 9, 'x')]).toEqual([false, false, false])
  await feed({ type: 'text-end', id: 'a' })
  expect(tap('a', 4, 'x')).toBe(false)
  expect(said.map(({ type }) => type)).toEqual(['text-start', 'text-delta', 'text-end'])
})

test('STUCK-11: a text that is heard is no silence', async () => {
  const { tap, outcome } = open({ begun: [{ type: 'text-start', id: 'a' }] })
  await vi.advanceTimersByTimeAsync(900)
  expect(tap('a', 0, 'word')).toBe(true)
  await vi.advanceTimersByTimeAsync(900)
  expect(outcome()).toBeUndefined()
  await vi.advanceTimersByTimeAsync(101)
  expect(outcome()).toMatchObject({ error: { message: 'Chunk timeout of 1000ms exceeded' } })
})
