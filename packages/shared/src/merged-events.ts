// Events of OpenAI's Responses API, with the deltas of a text joined: each event costs the provider and the AI SDK several
// web streams, a JSON and a zod parse. Only events that differ in nothing but their delta are joined; all others, and what is
// not understood, go through as they are, at once and in order. The first delta after a pause goes through at once, too.
import type { MergeWindow } from './merge-window.ts'

/** Deltas are joined within these types. */
const JOINED_TYPES = new Set([
  'response.output_text.delta',
  'response.reasoning_summary_text.delta',
  'response.function_call_arguments.delta',
])
/** What ends an event: servers end their lines in either way. */
const BLANK_LINE = /(\r?\n\r?\n|\r\r)/

const LINE_FEED = 0x0a

/** What two deltas of one text have in common. */
const SAME_FIELDS: readonly string[] = ['type', 'item_id', 'output_index', 'content_index', 'summary_index']
/** What may differ, or is of no use to a reader of the text. */
const FREE_FIELDS = new Set(['delta', 'sequence_number', 'obfuscation'])

type Delta = { type: string; delta: string } & Record<string, unknown>

export interface EventMerger {
  /** Takes bytes of the stream as they come. */
  take(bytes: Uint8Array): void
  /** Sends all that is held, a part of an event too. Nothing is sent after it. */
  end(): void
  /** Sends nothing any more. */
  drop(): void
}

/** `send` gets what goes on, as text, and is never called with none. */
export function createEventMerger(window: MergeWindow, send: (text: string) => void): EventMerger {
  const decoder = new TextDecoder()
  /** The text of an event that has not come whole. */
  let rest = ''
  /** The last bytes may have ended within a character. */
  let isCut = false
  /** A delta that waits for more like it. */
  let held: { delta: Delta; texts: string[] } | undefined
  let sentAt = -Infinity
  let scheduled = false
  let closed = false

  function takeHeld(): string {
    if (held === undefined) return ''
    const { delta, texts } = held
    held = undefined
    sentAt = performance.now()
    return `event: ${delta.type}\ndata: ${JSON.stringify({ ...delta, delta: texts.join('') })}\n\n`
  }

  /** What of an event goes on now: what waited before it, itself, or nothing yet. */
  function pass(event: string, blankLine: string): string {
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

  function sendSome(text: string): void {
    if (text !== '') send(text)
  }

  function drop(): void {
    closed = true
    held = undefined
  }

  /** The text of bytes. Mostly they are whole events, whose last byte is the end of a line: then no character is cut. */
  function textOf(bytes: Uint8Array): string {
    const isWhole = bytes.at(-1) === LINE_FEED
    if (isWhole && !isCut) return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString()
    isCut = !isWhole
    return decoder.decode(bytes, { stream: true })
  }

  return {
    take(bytes) {
      if (closed) return
      const text = rest + textOf(bytes)
      let now = ''
      if (isOneEvent(text)) {
        rest = ''
        now = pass(text.slice(0, -2), text.slice(-2))
      } else {
        const pieces = text.split(BLANK_LINE)
        rest = pieces.pop() ?? ''
        for (let at = 0; at < pieces.length; at += 2) now += pass(pieces[at] ?? '', pieces[at + 1] ?? '')
      }
      sendSome(now)
      if (held === undefined || scheduled) return
      scheduled = true
      window.schedule(sentAt + window.ms(), () => {
        scheduled = false
        sendSome(takeHeld())
      })
    },
    end() {
      if (closed) return
      sendSome(takeHeld() + rest + decoder.decode())
      drop()
    },
    drop,
  }
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
  for (const name in data) if (!isKnown(name, data[name])) return undefined
  return data as Delta
}

function isKnown(name: string, value: unknown): boolean {
  if (FREE_FIELDS.has(name) || SAME_FIELDS.includes(name)) return true
  return name === 'logprobs' && Array.isArray(value) && value.length === 0
}

/** The usual case of what comes at once: one event, and the blank line after it. */
function isOneEvent(text: string): boolean {
  return text.endsWith('\n\n') && text.indexOf('\n\n') === text.length - 2 && !text.includes('\r')
}

function isSameText(a: Delta, b: Delta): boolean {
  return SAME_FIELDS.every((name) => a[name] === b[name])
}
