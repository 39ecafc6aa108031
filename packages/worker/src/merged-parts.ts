// The way of a model's parts to the AI SDK, in one pass. What the SDK does with a part costs several times what the
// provider does, so deltas of one text that come close together become one. The first delta after any other part goes through at
// once, so that viewers see a text begin when it begins. One timer serves all streams of a process.
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'

type Part = LanguageModelV4StreamPart
type Delta = Extract<Part, { type: 'text-delta' | 'reasoning-delta' | 'tool-input-delta' }>

/** How long deltas are collected at least: what a reader does not see. */
const SHORTEST_WINDOW_MS = 40
/** And at most, in a process full of agents. */
const LONGEST_WINDOW_MS = 500
/** Streams that a process feeds at the shortest window: beyond that the window grows with their number. */
const STREAMS_AT_SHORTEST = 160

export interface MergeWindow {
  /** How long deltas are collected now. */
  ms(): number
  /** Counts a stream until the returned function is called. */
  open(): () => void
  /** Calls `flush` when the window is over. */
  schedule(flush: () => void): void
}

/** The window of all streams of a process. */
export function createMergeWindow(): MergeWindow {
  let streams = 0
  let due: (() => void)[] = []
  let timer: NodeJS.Timeout | undefined
  const ms = () => Math.min(Math.max(1, streams / STREAMS_AT_SHORTEST) * SHORTEST_WINDOW_MS, LONGEST_WINDOW_MS)
  return {
    ms,
    open() {
      streams += 1
      return () => void (streams -= 1)
    },
    schedule(flush) {
      due.push(flush)
      timer ??= setTimeout(() => {
        const now = due
        due = []
        timer = undefined
        for (const each of now) each()
      }, ms())
    },
  }
}

/**
 * The same stream with fewer parts. `onPart` is called with each merged part, in order, before it goes on, and waited for;
 * deltas are not waited for.
 */
export function mergedParts(
  source: ReadableStream<Part>,
  {
    window,
    onDelta,
    onPart,
  }: { window: MergeWindow; onDelta: (part: Delta) => void; onPart: (part: Part) => Promise<void> },
): ReadableStream<Part> {
  const reader = source.getReader()
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

  return new ReadableStream<Part>({
    async start(controller) {
      void (async () => {
        try {
          for (;;) {
            const { done, value } = await reader.read()
            if (closed) return
            if (done) break
            if (isDelta(value)) take(controller, value)
            else {
              flush(controller)
              first = true
              await onPart(value)
              if (closed) return
              controller.enqueue(value)
            }
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
      })()
    },
    async cancel(reason) {
      end()
      await reader.cancel(reason)
    },
  })
}

function isDelta(part: Part): part is Delta {
  return part.type === 'text-delta' || part.type === 'reasoning-delta' || part.type === 'tool-input-delta'
}

function isSameText(a: Delta, b: Delta): boolean {
  return a.type === b.type && a.id === b.id
}
