// The way of a model's parts to the AI SDK, in one pass. What the SDK does with a part costs several times what the
// provider does, so deltas of one text that come close together become one. The first delta after any other part goes through at
// once, so that viewers see a text begin when it begins. One timer serves all streams of a process.
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'

type Part = LanguageModelV4StreamPart
type Delta = Extract<Part, { type: 'text-delta' | 'reasoning-delta' | 'tool-input-delta' }>

/** How long deltas are collected at least: what a reader does not see. */
const SHORTEST_WINDOW_MS = 40
/** And at most, in a process full of agents. */
const LONGEST_WINDOW_MS = 1_000
/** Streams that a process feeds at the shortest window: beyond that the window grows with their number. */
const STREAMS_AT_SHORTEST = 100

export interface MergeWindow {
  /** How long deltas are collected now. */
  ms(): number
  /** Counts a stream until the returned function is called. */
  open(): () => void
  /** Calls `flush` when a window that begins now is over. */
  schedule(flush: () => void): void
}

/** The window of all streams of a process. It stays well below `chunkMs`, after which a silent model counts as stuck. */
export function createMergeWindow({ chunkMs }: { chunkMs: number }): MergeWindow {
  const longestMs = Math.min(LONGEST_WINDOW_MS, chunkMs / 4)
  let streams = 0
  /** In the order in which they began, which is nearly that in which they end. */
  let begun: { endsAt: number; flush: () => void }[] = []
  let timer: NodeJS.Timeout | undefined
  const ms = () => Math.min(Math.max(1, streams / STREAMS_AT_SHORTEST) * SHORTEST_WINDOW_MS, longestMs)

  function flushDue(): void {
    timer = undefined
    const now = performance.now()
    const first = begun.findIndex(({ endsAt }) => endsAt > now + 1)
    const due = first === -1 ? begun : begun.slice(0, first)
    begun = first === -1 ? [] : begun.slice(first)
    arm()
    for (const { flush } of due) flush()
  }

  function arm(): void {
    const next = begun[0]
    if (next !== undefined) timer ??= setTimeout(flushDue, Math.max(1, next.endsAt - performance.now()))
  }

  return {
    ms,
    open() {
      streams += 1
      return () => void (streams -= 1)
    },
    schedule(flush) {
      begun.push({ endsAt: performance.now() + ms(), flush })
      arm()
    },
  }
}

/**
 * What has begun and the rest of it, with fewer parts. `onPart` is called with each merged part, in order, before it goes on, and waited for;
 * deltas are not waited for.
 */
export function mergedParts(
  { begun, rest }: { begun: readonly Part[]; rest: ReadableStreamDefaultReader<Part> },
  {
    window,
    onDelta,
    onPart,
  }: { window: MergeWindow; onDelta: (part: Delta) => void; onPart: (part: Part) => Promise<void> },
): ReadableStream<Part> {
  let collected: { part: Delta; text: string[] } | undefined
  /** The next delta goes through at once. */
  let first = true
  let scheduled = false
  let closed = false
  const close = window.open()

  function end(): void {
    if (!closed) close()
    closed = true
    collected = undefined
  }

  function send(controller: ReadableStreamDefaultController<Part>, part: Delta): void {
    if (closed) return
    onDelta(part)
    controller.enqueue(part)
  }

  function flush(controller: ReadableStreamDefaultController<Part>): void {
    if (collected === undefined) return
    const { part, text } = collected
    collected = undefined
    send(controller, text.length === 1 ? part : { ...part, delta: text.join('') })
  }

  function take(controller: ReadableStreamDefaultController<Part>, part: Delta): void {
    if (first) {
      first = false
      return send(controller, part)
    }
    if (collected !== undefined && (!isSameText(collected.part, part) || part.providerMetadata !== undefined))
      flush(controller)
    if (collected === undefined) collected = { part, text: [part.delta] }
    else collected.text.push(part.delta)
    if (scheduled) return
    scheduled = true
    window.schedule(() => {
      scheduled = false
      flush(controller)
    })
  }

  async function pass(controller: ReadableStreamDefaultController<Part>, part: Part): Promise<void> {
    if (isDelta(part)) return take(controller, part)
    flush(controller)
    first = true
    await onPart(part)
    if (!closed) controller.enqueue(part)
  }

  async function passAll(controller: ReadableStreamDefaultController<Part>): Promise<void> {
    try {
      for (const part of begun) await pass(controller, part)
      for (;;) {
        const { done, value } = await rest.read()
        if (closed) return
        if (done) break
        if (isDelta(value)) take(controller, value)
        else await pass(controller, value)
      }
      flush(controller)
      end()
      controller.close()
    } catch (error) {
      if (closed) return
      flush(controller)
      end()
      controller.error(error)
    }
  }

  return new ReadableStream<Part>({
    start: (controller) => void passAll(controller),
    async cancel(reason) {
      end()
      await rest.cancel(reason)
    },
  })
}

function isDelta(part: Part): part is Delta {
  return part.type === 'text-delta' || part.type === 'reasoning-delta' || part.type === 'tool-input-delta'
}

function isSameText(a: Delta, b: Delta): boolean {
  return a.type === b.type && a.id === b.id
}
