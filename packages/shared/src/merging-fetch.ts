// A `fetch` for OpenAI's Responses API that joins the deltas of a text before the provider sees them: each event costs the
// provider and the AI SDK several web streams, a JSON and a zod parse. Only events that differ in nothing but their delta
// are joined; all others, and what is not understood, go through as they are, at once and in order. The first delta after a
// pause goes through at once, too.
import type { MergeWindow } from './merge-window.ts'

/** Deltas are joined within these types. */
const JOINED_TYPES = new Set([
  'response.output_text.delta',
  'response.reasoning_summary_text.delta',
  'response.function_call_arguments.delta',
])
/** What ends an event: servers end their lines in either way. */
const BLANK_LINE = /(\r?\n\r?\n|\r\r)/

/** What two deltas of one text have in common. */
const SAME_FIELDS = ['type', 'item_id', 'output_index', 'content_index', 'summary_index'] as const
/** What may differ, or is of no use to a reader of the text. */
const FREE_FIELDS = new Set(['delta', 'sequence_number', 'obfuscation'])

type Delta = { type: string; delta: string } & Partial<Record<(typeof SAME_FIELDS)[number], unknown>>

/** The same as `fetch`, for streams of server-sent events with fewer events. */
export function createMergingFetch(window: MergeWindow): typeof fetch {
  return async (input, init) => {
    const response = await fetch(input, init)
    const isStream = response.headers.get('content-type')?.startsWith('text/event-stream') === true
    if (!response.ok || !isStream || response.body === null) return response
    return withBody(response, mergedEvents(response.body, window))
  }
}

/** The response with another body. A new Response costs more than all that is saved in a short answer. */
function withBody(response: Response, body: ReadableStream<Uint8Array>): Response {
  return new Proxy(response, {
    get(target, name) {
      if (name === 'body') return body
      // Getters and methods of a Response work on nothing else.
      const value: unknown = Reflect.get(target, name, target)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}

export function mergedEvents(source: ReadableStream<Uint8Array>, window: MergeWindow): ReadableStream<Uint8Array> {
  const reader = source.getReader()
  const decoder = new TextDecoder()
  const encoder = new TextEncoder()
  const close = window.open()
  /** The text of an event that has not come whole. */
  let rest = ''
  /** A delta that waits for more like it. */
  let held: { delta: Delta; texts: string[] } | undefined
  let sentAt = -Infinity
  let scheduled = false
  let closed = false

  function end(): void {
    if (!closed) close()
    closed = true
    held = undefined
  }

  function takeHeld(): string {
    if (held === undefined) return ''
    const { delta, texts } = held
    held = undefined
    sentAt = performance.now()
    return `event: ${delta.type}\ndata: ${JSON.stringify({ ...delta, delta: texts.join('') })}\n\n`
  }

  /** What of an event goes on now: what waited before it, itself, or nothing yet. */
  function take(event: string, blankLine: string): string {
    const delta = deltaOf(event)
    if (delta === undefined) return `${takeHeld()}${event}${blankLine}`
    if (held !== undefined && isSameText(held.delta, delta)) {
      held.texts.push(delta.delta)
      return ''
    }
    const before = takeHeld()
    if (performance.now() - sentAt >= window.ms()) {
      sentAt = performance.now()
      return `${before}${event}${blankLine}`
    }
    held = { delta, texts: [delta.delta] }
    return before
  }

  /** The same for all events that are whole now. */
  function takeAll(bytes: Uint8Array): string {
    const pieces = (rest + decoder.decode(bytes, { stream: true })).split(BLANK_LINE)
    rest = pieces.pop() ?? ''
    let now = ''
    for (let at = 0; at < pieces.length; at += 2) now += take(pieces[at] ?? '', pieces[at + 1] ?? '')
    return now
  }

  function send(controller: ReadableStreamDefaultController<Uint8Array>, text: string): void {
    if (text !== '' && !closed) controller.enqueue(encoder.encode(text))
  }

  function scheduleFlush(controller: ReadableStreamDefaultController<Uint8Array>): void {
    if (held === undefined || scheduled) return
    scheduled = true
    window.schedule(sentAt, () => {
      scheduled = false
      send(controller, takeHeld())
    })
  }

  async function pass(controller: ReadableStreamDefaultController<Uint8Array>): Promise<void> {
    try {
      for (;;) {
        const { done, value } = await reader.read()
        if (closed) return
        if (done) break
        send(controller, takeAll(value))
        scheduleFlush(controller)
      }
      send(controller, takeHeld() + rest + decoder.decode())
      end()
      controller.close()
    } catch (error) {
      if (closed) return
      send(controller, takeHeld() + rest)
      end()
      // An error throws away what has not been read yet.
      setImmediate(() => controller.error(error))
    }
  }

  return new ReadableStream({
    start: (controller) => void pass(controller),
    async cancel(reason) {
      end()
      await reader.cancel(reason)
    },
  })
}

/** The delta of an event, if it is one that may be joined with others. */
function deltaOf(event: string): Delta | undefined {
  const line = /^(?:event: [\w.]+\r?\n)?data: (\{.*\})$/.exec(event)?.[1]
  if (line === undefined || !line.includes('delta')) return undefined
  let data: Record<string, unknown>
  try {
    data = JSON.parse(line)
  } catch {
    return undefined
  }
  const { type, delta } = data
  if (typeof type !== 'string' || typeof delta !== 'string' || !JOINED_TYPES.has(type)) return undefined
  // Log probabilities and whatever else a token has of its own are not thrown away.
  const known = Object.entries(data).every(
    ([name, value]) =>
      FREE_FIELDS.has(name) ||
      (SAME_FIELDS as readonly string[]).includes(name) ||
      (name === 'logprobs' && Array.isArray(value) && value.length === 0),
  )
  return known ? { ...data, type, delta } : undefined
}

function isSameText(a: Delta, b: Delta): boolean {
  return SAME_FIELDS.every((name) => a[name] === b[name])
}
