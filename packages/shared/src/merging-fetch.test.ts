import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { createMergeWindow } from './merge-window.ts'
import { mergedEvents } from './merging-fetch.ts'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

const event = (data: { type: string } & Record<string, unknown>) =>
  `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`
const text = (delta: string, more: Record<string, unknown> = {}) =>
  event({ type: 'response.output_text.delta', item_id: 'm', output_index: 0, content_index: 0, delta, ...more })
const added = event({ type: 'response.output_item.added', output_index: 0, item: { type: 'message', id: 'm' } })
const completed = event({ type: 'response.completed', response: { usage: { input_tokens: 1, output_tokens: 2 } } })

const soon = () => vi.advanceTimersByTimeAsync(0)

/** Merged events whose source the test feeds, and what has come of them. */
function open() {
  let source: ReadableStreamDefaultController<Uint8Array> | undefined
  const cancelled: unknown[] = []
  const stream = new ReadableStream<Uint8Array>({
    start: (controller) => void (source = controller),
    cancel: (reason) => void cancelled.push(reason),
  })
  const window = createMergeWindow({ chunkMs: 60_000 })
  const reader = mergedEvents(stream, window).getReader()
  const got: string[] = []
  let failed: unknown
  const read = (async () => {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return
      got.push(new TextDecoder().decode(value))
    }
  })().catch((error: unknown) => (failed = error))
  return {
    window,
    reader,
    read,
    cancelled,
    got: () => got.join(''),
    failed: () => failed,
    async feed(bytes: string | Uint8Array) {
      source?.enqueue(typeof bytes === 'string' ? new TextEncoder().encode(bytes) : bytes)
      await soon()
    },
    close: () => source?.close(),
    fail: (error: Error) => source?.error(error),
  }
}

test('the first delta goes through at once, what follows within the window as one event', async () => {
  const { feed, got } = open()
  await feed(added + text('one ') + text('two ', { sequence_number: 7 }))
  await feed(text('three ', { obfuscation: 'xy' }))
  expect(got()).toBe(added + text('one '))
  await vi.advanceTimersByTimeAsync(40)
  expect(got()).toBe(added + text('one ') + text('two three ', { sequence_number: 7 }))
})

test('deltas that come further apart than the window all go through at once', async () => {
  const { feed, got } = open()
  for (const word of ['a ', 'b ', 'c ']) {
    await feed(text(word))
    await vi.advanceTimersByTimeAsync(50)
  }
  expect(got()).toBe(text('a ') + text('b ') + text('c '))
})

test('any other event, and the end, bring what is held along before them, at once', async () => {
  const { feed, got, close, read } = open()
  await feed(text('one ') + text('two ') + completed)
  expect(got()).toBe(text('one ') + text('two ') + completed)
  await feed(text('three') + text('four'))
  close()
  await read
  expect(got()).toBe(text('one ') + text('two ') + completed + text('threefour'))
})

test('deltas of different texts and those with something of their own are not joined', async () => {
  const { feed, got, close, read } = open()
  const events = [
    text('a'),
    text('b', { content_index: 1 }),
    text('c', { item_id: 'n' }),
    text('d', { item_id: 'n', logprobs: [{ token: 'd', logprob: -1 }] }),
    text('e', { item_id: 'n', annotations: [] }),
    event({ type: 'response.function_call_arguments.delta', item_id: 'f', output_index: 1, delta: '{' }),
  ]
  await feed(events.join(''))
  close()
  await read
  expect(got()).toBe(events.join(''))
})

test('events that are cut anywhere, in the middle of a character too, come whole; what is no such event passes as it is', async () => {
  const { feed, got, close, read } = open()
  const all = `: a comment\n\n${text('one ')}${text('größer 😀 ')}${text('two')}data: [DONE]\n\nevent: odd\r\ndata: {"delta"\r\n\r\nrest`
  for (const byte of new TextEncoder().encode(all)) await feed(Uint8Array.of(byte))
  close()
  await read
  expect(got()).toBe(all.replace(text('größer 😀 ') + text('two'), text('größer 😀 two')))
})

test.each(['\r\n', '\r'])(
  'events whose lines end in %j come at once, and are joined where that is known',
  async (lineEnd) => {
    const { feed, got } = open()
    const asSent = (events: string) => events.replaceAll('\n', lineEnd)
    const first = asSent(`: ping\n\n${added}${text('one ')}`)
    for (const byte of new TextEncoder().encode(first)) await feed(Uint8Array.of(byte))
    expect(got()).toBe(first)
    await feed(asSent(text('two ') + text('three')))
    await feed(asSent(completed))
    const joined = lineEnd === '\r' ? asSent(text('two ') + text('three')) : text('two three')
    expect(got()).toBe(first + joined + asSent(completed))
  },
)

test('when the source breaks, what was held comes first; after a cancel nothing does', async () => {
  const broken = open()
  await broken.feed(text('a') + text('b') + text('c'))
  broken.fail(new Error('reset'))
  await vi.advanceTimersByTimeAsync(1)
  await broken.read
  expect([broken.got(), broken.failed()]).toEqual([text('a') + text('bc'), new Error('reset')])

  const left = open()
  await left.feed(text('a') + text('b'))
  await left.reader.cancel('enough')
  await vi.advanceTimersByTimeAsync(100)
  expect([left.got(), left.cancelled, left.window.ms()]).toEqual([text('a'), ['enough'], 40])
})
