import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { createMergeWindow } from '@offshoot/shared/merge-window'
import { mergedParts, type MergeOptions } from './merged-parts.ts'

type Part = LanguageModelV4StreamPart

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

const text = (delta: string, id = 'a'): Part => ({ type: 'text-delta', id, delta })
const start: Part = { type: 'text-start', id: 'a' }
const end: Part = { type: 'text-end', id: 'a' }
const finish: Part = {
  type: 'finish',
  finishReason: { unified: 'stop', raw: 'stop' },
  usage: {
    inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: 1, text: 1, reasoning: 0 },
  },
}

/** As whoever records a text reads it. */
const readText = ({ delta }: { delta: string }) => void delta.trimEnd()

const soon = () => vi.advanceTimersByTimeAsync(0)

/** A merged stream whose source the test feeds, and what has come of it. */
function open({
  onPart = async () => undefined,
  chunkMs = 60_000,
}: Partial<Pick<MergeOptions, 'onPart' | 'chunkMs'>> = {}) {
  let source: ReadableStreamDefaultController<Part> | undefined
  const cancelled: unknown[] = []
  const stream = new ReadableStream<Part>({
    start: (controller) => void (source = controller),
    cancel: (reason) => void cancelled.push(reason),
  })
  const window = createMergeWindow({ chunkMs: 60_000 })
  const deltas: Part[] = []
  const merged = mergedParts(
    { begun: [], rest: stream.getReader() },
    { window, chunkMs, onDelta: (part) => deltas.push(part), onPart },
  )
  const reader = merged.getReader()
  const got: Part[] = []
  let failed: unknown
  const read = (async () => {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return
      got.push(value)
    }
  })().catch((error: unknown) => (failed = error))
  return {
    window,
    got,
    deltas,
    cancelled,
    reader,
    read,
    failed: () => failed,
    async feed(...parts: Part[]) {
      for (const part of parts) source?.enqueue(part)
      await soon()
    },
    close: () => source?.close(),
    fail: (error: Error) => source?.error(error),
  }
}

test('the first delta goes through at once, what follows within the window as one', async () => {
  const { feed, got, deltas } = open()
  await feed(start, text('one '), text('two '), text('three '))
  expect(got).toEqual([start, text('one ')])
  await vi.advanceTimersByTimeAsync(40)
  expect(got).toEqual([start, text('one '), text('two three ')])
  expect(deltas).toEqual([text('one '), text('two three ')])
})

test('any other part brings what is collected along before it, and begins anew', async () => {
  const { feed, got } = open()
  const call: Part = { type: 'tool-call', toolCallId: 'c', toolName: 't', input: '{}' }
  await feed(start, text('one '), text('two '), end, call, text('three'), text('four', 'b'), text('five', 'b'))
  expect(got).toEqual([start, text('one '), text('two '), end, call, text('three')])
  await vi.advanceTimersByTimeAsync(40)
  expect(got.at(-1)).toEqual(text('fourfive', 'b'))
})

test('texts of different ids, and deltas with metadata of their own, are not joined', async () => {
  const { feed, got, close, read } = open()
  const marked: Part = { type: 'text-delta', id: 'a', delta: 'd', providerMetadata: { openai: { mark: 1 } } }
  await feed(text('a'), text('b'), text('c', 'other'), text('x'), marked)
  close()
  await read
  expect(got).toEqual([text('a'), text('b'), text('c', 'other'), text('x'), marked])
})

test('a part is waited for before it goes on; the window grows with the streams of a process', async () => {
  const stored = Promise.withResolvers<void>()
  const { feed, got, window } = open({
    onPart: async (part) => (part.type === 'text-end' ? stored.promise : undefined),
  })
  await feed(text('a'), end)
  expect(got).toEqual([text('a')])
  stored.resolve()
  await soon()
  expect(got).toEqual([text('a'), end])
  const close = Array.from({ length: 499 }, () => window.open())
  expect(window.ms()).toBe(250)
  for (const each of close) each()
  expect(window.ms()).toBe(40)
})

test('when the source breaks, what was collected comes first', async () => {
  const { feed, got, fail, read, failed } = open()
  await feed(text('a'), text('b'))
  fail(new Error('reset'))
  await vi.advanceTimersByTimeAsync(1)
  await read
  expect([got, failed()]).toEqual([[text('a'), text('b')], new Error('reset')])
})

test('after a cancel nothing goes on, and the source is told', async () => {
  const { feed, got, reader, cancelled, window } = open()
  await feed(text('a'), text('b'))
  await reader.cancel('enough')
  await vi.advanceTimersByTimeAsync(100)
  expect([got, cancelled]).toEqual([[text('a')], ['enough']])
  expect(window.ms()).toBe(40)
})

test('a delta that is none fails its stream also when a timer comes upon it, and ends no process', async () => {
  const cancelled: unknown[] = []
  // What a provider of one's own may send in spite of its type.
  const odd = { type: 'text-delta', id: 'a' } as unknown as Part
  const source = new ReadableStream<Part>({
    start(controller) {
      for (const part of [start, text('one'), odd]) controller.enqueue(part)
    },
    cancel: (reason) => void cancelled.push(reason),
  })
  const window = createMergeWindow({ chunkMs: 60_000 })
  let characters = 0
  const onDelta = ({ delta }: { delta: string }) => void (characters += delta.length)
  const merged = mergedParts(
    { begun: [], rest: source.getReader() },
    { window, chunkMs: 60_000, onDelta, onPart: async () => undefined },
  )
  const reader = merged.getReader()
  expect([(await reader.read()).value, (await reader.read()).value]).toEqual([start, text('one')])
  const failed = reader.read().catch((error: unknown) => error)
  await vi.advanceTimersByTimeAsync(100)
  expect(await failed).toBeInstanceOf(TypeError)
  expect(cancelled).toEqual([expect.any(TypeError)])
  expect(characters).toBe(3)
})

test('a source that breaks behind a delta that is none fails the stream with its own error, and ends no process', async () => {
  const odd = { type: 'text-delta', id: 'a' } as unknown as Part
  const broken = Promise.withResolvers<void>()
  const source = new ReadableStream<Part>({
    start(controller) {
      for (const part of [text('one'), odd]) controller.enqueue(part)
      void broken.promise.then(() => controller.error(new Error('reset')))
    },
  })
  const window = createMergeWindow({ chunkMs: 60_000 })
  const merged = mergedParts(
    { begun: [], rest: source.getReader() },
    { window, chunkMs: 60_000, onDelta: readText, onPart: async () => undefined },
  )
  const reader = merged.getReader()
  expect((await reader.read()).value).toEqual(text('one'))
  const failed = reader.read().catch((error: unknown) => error)
  await soon()
  broken.resolve()
  await vi.advanceTimersByTimeAsync(1)
  expect(await failed).toEqual(new Error('reset'))
})

test('a source that is silent for longer than it may, or says only what is no output, fails after what it had said', async () => {
  const { feed, got, failed, cancelled } = open({ chunkMs: 1_000 })
  const ping: Part = { type: 'raw', rawValue: 'ping' }
  await feed(text('a'), text('b'))
  await vi.advanceTimersByTimeAsync(900)
  await feed(text('c'))
  await vi.advanceTimersByTimeAsync(900)
  await feed(ping)
  expect(failed()).toBeUndefined()
  await vi.advanceTimersByTimeAsync(101)
  expect(got).toEqual([text('a'), text('b'), text('c'), ping])
  expect(failed()).toMatchObject({ message: 'Chunk timeout of 1000ms exceeded' })
  expect(cancelled).toHaveLength(1)
})

test('how long a whole output takes to be stored is no silence', async () => {
  const stored = Promise.withResolvers<void>()
  const { feed, got, failed } = open({ chunkMs: 1_000, onPart: () => stored.promise })
  await feed(finish)
  await vi.advanceTimersByTimeAsync(5_000)
  expect([got, failed()]).toEqual([[], undefined])
  stored.resolve()
  await vi.advanceTimersByTimeAsync(1)
  expect(got).toEqual([finish])
})

test('a source that stays open after its finish is left, and what it had said is whole', async () => {
  const { feed, got, failed, cancelled, read } = open({ chunkMs: 1_000 })
  await feed(text('a'), finish)
  await vi.advanceTimersByTimeAsync(1_001)
  await read
  expect([got, failed(), cancelled]).toEqual([[text('a'), finish], undefined, [undefined]])
})
