// The way of a model's parts to whoever keeps and shows them, in one pass and as they come. The AI SDK's loop gets the whole
// output at its end (recorded-output.ts): its own stream costs more than the call.
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import type { TextTap } from '@offshoot/shared/text-tap'
import { type BegunCall, NO_OUTPUT } from './model-retries.ts'
import { createSilenceLimit, type SilenceLimit } from './silence-limit.ts'
import { createUniqueCallIds } from './unique-call-ids.ts'

type Part = LanguageModelV4StreamPart
type Rest = BegunCall['rest']

/** How long a source may go on once it is stopped: what it still holds is paid for. A segment waits for longer than that. */
const LAST_WORDS_MS = 100

export interface OutputReaderOptions {
  signal: AbortSignal
  /** How long the source may be silent before its `finish`, in milliseconds. */
  chunkMs: number
  /** Gets each part of the source, in order. */
  onPart: (part: Part) => void
  /** Gets the same as soon as it is said: pieces of a text may come before their part does. */
  onSaid: (part: Part) => void
}

export interface OutputReader {
  /** Hears texts before the provider has read them. */
  tap: TextTap
  /**
   * Reads a call's output up to its `finish`, or to its end when it has none.
   * @throws what breaks it: the signal's reason, an error that the provider sends, the source's own, a silence that was too long
   */
  read(source: Pick<BegunCall, 'begun' | 'rest'>): Promise<void>
}

export function createOutputReader({ signal, chunkMs, onPart, onSaid }: OutputReaderOptions): OutputReader {
  const texts = createTexts()
  const withUniqueId = createUniqueCallIds()
  /** Set while the source is read. */
  let silence: SilenceLimit | undefined

  /** True: it was the last one. */
  function take(given: Part): boolean {
    const part = withUniqueId(given)
    if (!NO_OUTPUT.has(part.type)) silence?.heard()
    onPart(part)
    const unsaid = texts.unsaidOf(part)
    if (unsaid !== undefined) onSaid(unsaid)
    if (part.type === 'error') throw part.error
    return part.type === 'finish'
  }

  return {
    tap(id, at, piece) {
      if (silence === undefined || !texts.say(id, at, piece)) return false
      silence.heard()
      onSaid({ type: 'text-delta', id, delta: piece })
      return true
    },
    async read({ begun, rest }) {
      let silent: Error | undefined
      let lastWords: NodeJS.Timeout | undefined
      const leave = (reason: unknown) => void rest.cancel(reason).catch(() => undefined)
      const stop = () => void (lastWords = setTimeout(() => leave(signal.reason), LAST_WORDS_MS))
      silence = createSilenceLimit(chunkMs, () => leave((silent = chunkTimeout(chunkMs))))
      signal.addEventListener('abort', stop, { once: true })
      if (signal.aborted) stop()
      try {
        if (begun.some(take)) return readOn(rest, chunkMs)
        for (;;) {
          const { done, value } = await rest.read()
          if (done) break
          if (take(value)) return readOn(rest, chunkMs)
        }
      } catch (error) {
        leave(error)
        throw signal.aborted ? signal.reason : error
      } finally {
        silence.stop()
        silence = undefined
        clearTimeout(lastWords)
        signal.removeEventListener('abort', stop)
      }
      signal.throwIfAborted()
      if (silent !== undefined) throw silent
    },
  }
}

/** How many characters of the texts under way were said, and how many of them have come as parts. */
function createTexts() {
  const open = new Map<string, { said: number; come: number }>()
  return {
    /** False: the piece does not follow what was said of its text. */
    say(id: string, at: number, piece: string): boolean {
      const text = open.get(id)
      if (text?.said !== at) return false
      text.said += piece.length
      return true
    },
    /** What of a part is still to be said. */
    unsaidOf(part: Part): Part | undefined {
      if (part.type === 'text-start') open.set(part.id, { said: 0, come: 0 })
      if (part.type === 'text-end') open.delete(part.id)
      const text = part.type === 'text-delta' ? open.get(part.id) : undefined
      if (part.type !== 'text-delta' || text === undefined) return part
      const said = text.said - text.come
      text.come += part.delta.length
      text.said = Math.max(text.said, text.come)
      if (said <= 0) return part
      return said >= part.delta.length ? undefined : { ...part, delta: part.delta.slice(said) }
    },
  }
}

/** Reads what comes after the `finish`, so that its connection can be used again; one that stays open is left. */
function readOn(rest: Rest, limitMs: number): void {
  const limit = setTimeout(() => void rest.cancel().catch(() => undefined), limitMs)
  const untilEnd = async () => {
    while (!(await rest.read()).done);
  }
  void untilEnd()
    .catch(() => undefined)
    .finally(() => clearTimeout(limit))
}

/** Worded as the SDK's own. */
function chunkTimeout(chunkMs: number): Error {
  return new DOMException(`Chunk timeout of ${chunkMs}ms exceeded`, 'TimeoutError')
}
