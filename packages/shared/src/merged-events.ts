// Events of OpenAI's Responses API, with the deltas of a text joined: each event costs the provider package several web
// streams, a JSON and a zod parse. Only events that differ in nothing but their delta are joined; all others, and what is
// not understood, go through as they are, at once and in order. The first delta after a pause goes through at once, too.
import type { MergeWindow } from './merge-window.ts'
import type { TextTap } from './text-tap.ts'

/** Deltas are joined within these types. */
const JOINED_TYPES = new Set([
  'response.output_text.delta',
  'response.reasoning_summary_text.delta',
  'response.function_call_arguments.delta',
])
/** What ends an event: servers end their lines in either way. */
const BLANK_LINE = /(\r?\n\r?\n|\r\r)/

/** Of this the tap hears. */
const TAPPED_TYPE = 'response.output_text.delta'
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

/** A text, of which a part has gone on and the rest waits for more of it. */
interface HeldText {
  delta: Delta
  pieces: string[]
  /** Pieces that the tap has heard. */
  heard: number
}

/**
 * `send` gets what goes on, as text, and is never called with none. What a tap wants of a text goes on when the text has
 * ended, or something else comes.
 */
export function createEventMerger(window: MergeWindow, send: (text: string) => void, tap?: TextTap): EventMerger {
  const decoder = createDecoder()
  /** The text of an event that has not come whole. */
  let rest = ''
  let held: HeldText | undefined
  /** The text of the last delta, and how many characters of it went on or were heard. */
  let last: { delta: Delta; characters: number } | undefined
  let sentAt = -Infinity
  let scheduled = false
  let closed = false

  function takeHeld(): string {
    if (held === undefined) return ''
    const { delta, pieces, heard } = held
    held = undefined
    sentAt = performance.now()
    count(delta, lengthOf(pieces.slice(heard)))
    return `event: ${delta.type}\ndata: ${JSON.stringify({ ...delta, delta: pieces.join('') })}\n\n`
  }

  function count(delta: Delta, characters: number): void {
    if (last === undefined || !isSameText(last.delta, delta)) last = { delta, characters: 0 }
    last.characters += characters
  }

  /** What of an event goes on now: what waited before it, itself, or nothing yet. */
  function pass(event: string, blankLine: string): string {
    const delta = deltaOf(event)
    if (delta === undefined) return `${takeHeld()}${event}${blankLine}`
    if (held !== undefined && isSameText(held.delta, delta)) {
      held.pieces.push(delta.delta)
      return ''
    }
    const before = takeHeld()
    if (performance.now() - sentAt >= window.ms() && !mayHear(delta)) {
      sentAt = performance.now()
      count(delta, delta.delta.length)
      return `${before}${event}${blankLine}`
    }
    held = { delta, pieces: [delta.delta], heard: 0 }
    return before
  }

  /** At the end of a window: what is held goes to the tap, or on. */
  function passHeld(): void {
    if (held === undefined || closed) return
    const { delta, pieces, heard } = held
    const piece = pieces.slice(heard).join('')
    if (piece !== '' && mayHear(delta) && tap?.(String(delta['item_id']), last?.characters ?? 0, piece) === true) {
      held.heard = pieces.length
      sentAt = performance.now()
      count(delta, piece.length)
    } else sendSome(takeHeld())
  }

  /** The provider has the beginning of the text, so that a tap knows it. */
  function mayHear(delta: Delta): boolean {
    return tap !== undefined && last !== undefined && isSameText(last.delta, delta) && delta.type === TAPPED_TYPE
  }

  function sendSome(text: string): void {
    if (text !== '') send(text)
  }

  function drop(): void {
    closed = true
    held = undefined
  }

  return {
    take(bytes) {
      if (closed) return
      const text = rest + decoder.textOf(bytes)
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
      if (held === undefined || held.heard === held.pieces.length || scheduled) return
      const dueAt = sentAt + window.ms()
      if (dueAt <= performance.now()) return passHeld()
      scheduled = true
      window.schedule(dueAt, () => {
        scheduled = false
        passHeld()
      })
    },
    end() {
      if (closed) return
      sendSome(takeHeld() + rest + decoder.end())
      drop()
    },
    drop,
  }
}

/** Bytes are mostly whole events, whose last byte is the end of a line: then no character of them is cut. */
function createDecoder() {
  const decoder = new TextDecoder()
  let isCut = false
  return {
    textOf(bytes: Uint8Array): string {
      const isWhole = bytes.at(-1) === LINE_FEED
      if (isWhole && !isCut) return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString()
      isCut = !isWhole
      return decoder.decode(bytes, { stream: true })
    },
    end: () => decoder.decode(),
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

function lengthOf(pieces: readonly string[]): number {
  return pieces.reduce((sum, piece) => sum + piece.length, 0)
}
