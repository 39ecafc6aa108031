// The way of a model's parts to the AI SDK, in one pass. What the SDK does with a part costs several times what the
// provider does, so deltas of one text that come close together become one. The first delta after a pause goes through
// at once, so that viewers see a text begin when it begins.
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import type { MergeWindow } from '@offshoot/shared/merge-window'

type Part = LanguageModelV4StreamPart
type Delta = Extract<Part, { type: 'text-delta' | 'reasoning-delta' | 'tool-input-delta' }>

/**
 * What has begun and the rest of it, with fewer parts. Each is told before it goes on, in order: a delta to `onDelta`, any
 * other to `onPart`, which is waited for.
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
  let sentAt = -Infinity
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
    sentAt = performance.now()
    onDelta(part)
    controller.enqueue(part)
  }

  function flush(controller: ReadableStreamDefaultController<Part>): void {
    if (collected === undefined) return
    const { part, text } = collected
    collected = undefined
    send(controller, text.length === 1 ? part : { ...part, delta: text.join('') })
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
    rest.cancel(error).catch(() => undefined)
    // An error throws away what has not been read yet.
    setImmediate(() => controller.error(error))
  }

  function take(controller: ReadableStreamDefaultController<Part>, part: Delta): void {
    if (collected !== undefined && (!isSameText(collected.part, part) || part.providerMetadata !== undefined))
      flush(controller)
    if (collected !== undefined) collected.text.push(part.delta)
    else if (performance.now() - sentAt >= window.ms()) return send(controller, part)
    else collected = { part, text: [part.delta] }
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

  async function pass(controller: ReadableStreamDefaultController<Part>, part: Part): Promise<void> {
    if (isDelta(part)) return take(controller, part)
    flush(controller)
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
      fail(controller, error)
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
