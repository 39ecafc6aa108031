// The way of a model's parts to the AI SDK, in one pass. What the SDK does with a part costs several times what the
// provider does, so deltas of one text that come close together become one. The first delta after a pause goes through
// at once, so that viewers see a text begin when it begins.
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import type { MergeWindow } from '@offshoot/shared/merge-window'
import { NO_OUTPUT } from './model-retries.ts'
import { createSilenceLimit, type SilenceLimit } from './silence-limit.ts'

type Part = LanguageModelV4StreamPart
type Delta = Extract<Part, { type: 'text-delta' | 'reasoning-delta' | 'tool-input-delta' }>

/** What has begun, and the rest of it. */
export interface PartSource {
  begun: readonly Part[]
  rest: ReadableStreamDefaultReader<Part>
}

/** Deltas that a provider has joined within the same window come about that far apart: they are not held again. */
const NEARLY = 0.75

export interface MergeOptions {
  window: MergeWindow
  /** How long the source may be silent before its `finish`, in milliseconds. */
  chunkMs: number
  onDelta: (part: Delta) => void
  onPart: (part: Part) => Promise<void>
}

/**
 * The source's parts, fewer of them. Each is told before it goes on, in order: a delta to `onDelta`, any
 * other to `onPart`, which is waited for. Fails when the source is silent for longer than it may.
 */
export function mergedParts(
  source: PartSource,
  { window, chunkMs, onDelta, onPart }: MergeOptions,
): ReadableStream<Part> {
  const collected = createCollected()
  let sentAt = -Infinity
  let scheduled = false
  let closed = false
  const close = window.open()
  let silence: SilenceLimit | undefined

  function end(): void {
    if (!closed) close()
    silence?.stop()
    closed = true
    collected.takeOut()
  }

  function send(controller: ReadableStreamDefaultController<Part>, part: Delta): void {
    if (closed) return
    sentAt = performance.now()
    onDelta(part)
    controller.enqueue(part)
  }

  function flush(controller: ReadableStreamDefaultController<Part>): void {
    const part = collected.takeOut()
    if (part !== undefined) send(controller, part)
  }

  /** Ends the run's stream, after what was collected: a part that is not what it should be fails its own run alone. */
  function fail(controller: ReadableStreamDefaultController<Part>, error: unknown): void {
    if (closed) return
    try {
      flush(controller)
    } catch {
      // The stream fails anyway, with the error that came first.
    }
    end()
    source.rest.cancel(error).catch(() => undefined)
    // An error throws away what has not been read yet.
    setImmediate(() => controller.error(error))
  }

  function take(controller: ReadableStreamDefaultController<Part>, part: Delta): void {
    if (!collected.join(part)) {
      flush(controller)
      if (performance.now() - sentAt >= window.ms() * NEARLY) return send(controller, part)
      collected.begin(part)
    }
    if (scheduled) return
    scheduled = true
    window.schedule(sentAt, () => {
      scheduled = false
      try {
        flush(controller)
      } catch (error) {
        // Thrown from a timer it would end the process.
        fail(controller, error)
      }
    })
  }

  /** Resolves when the part has gone on; one that may wait for more like it is not waited for. */
  function pass(controller: ReadableStreamDefaultController<Part>, part: Part): Promise<void> | void {
    if (!NO_OUTPUT.has(part.type)) silence?.heard()
    return isDelta(part) ? take(controller, part) : passAlone(controller, part)
  }

  async function passAlone(controller: ReadableStreamDefaultController<Part>, part: Part): Promise<void> {
    flush(controller)
    // The source has said all: how long it takes to be stored is not its silence.
    if (part.type === 'finish') silence?.stop()
    await onPart(part)
    if (closed) return
    controller.enqueue(part)
    // A source that stays open after it all the same is left.
    if (part.type === 'finish') silence = createSilenceLimit(chunkMs, () => finish(controller))
  }

  function finish(controller: ReadableStreamDefaultController<Part>): void {
    if (closed) return
    flush(controller)
    end()
    controller.close()
    source.rest.cancel().catch(() => undefined)
  }

  async function passAll(controller: ReadableStreamDefaultController<Part>): Promise<void> {
    silence = createSilenceLimit(chunkMs, () => fail(controller, chunkTimeout(chunkMs)))
    try {
      await readAll(source, (part) => (closed ? 'stop' : pass(controller, part)))
      finish(controller)
    } catch (error) {
      fail(controller, error)
    }
  }

  return new ReadableStream<Part>({
    start: (controller) => void passAll(controller),
    async cancel(reason) {
      end()
      await source.rest.cancel(reason)
    },
  })
}

/** Worded as the SDK's own. */
function chunkTimeout(chunkMs: number): Error {
  return new DOMException(`Chunk timeout of ${chunkMs}ms exceeded`, 'TimeoutError')
}

/** Gives each part to `take` until it says stop, waiting where it wants that. */
async function readAll(
  { begun, rest }: PartSource,
  take: (part: Part) => Promise<void> | 'stop' | void,
): Promise<void> {
  for (const part of begun) await take(part)
  for (;;) {
    const { done, value } = await rest.read()
    if (done) return
    const taken = take(value)
    if (taken === 'stop') return
    if (taken !== undefined) await taken
  }
}

/** The deltas of one text that wait to go on as one. */
function createCollected() {
  let waiting: { part: Delta; text: string[] } | undefined
  return {
    /** False: it is of another text, or has something of its own. */
    join(part: Delta): boolean {
      if (waiting === undefined || !isSameText(waiting.part, part) || part.providerMetadata !== undefined) return false
      waiting.text.push(part.delta)
      return true
    },
    begin(part: Delta): void {
      waiting = { part, text: [part.delta] }
    },
    takeOut(): Delta | undefined {
      if (waiting === undefined) return undefined
      const { part, text } = waiting
      waiting = undefined
      return text.length === 1 ? part : { ...part, delta: text.join('') }
    },
  }
}

function isDelta(part: Part): part is Delta {
  return part.type === 'text-delta' || part.type === 'reasoning-delta' || part.type === 'tool-input-delta'
}

function isSameText(a: Delta, b: Delta): boolean {
  return a.type === b.type && a.id === b.id
}
