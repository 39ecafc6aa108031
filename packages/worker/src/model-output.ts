// The way of a model's parts to whoever keeps and shows them, in one pass and as they come. The AI SDK's loop gets the whole
// output at its end (recorded-output.ts): its own stream costs more than the call.
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import type { BegunCall } from './model-retries.ts'
import { NO_OUTPUT } from './model-retries.ts'
import { createSilenceLimit } from './silence-limit.ts'

type Part = LanguageModelV4StreamPart
type Rest = BegunCall['rest']

/** How long a source may go on once it is stopped: what it still holds, it has been paid for. */
const LAST_WORDS_MS = 100

export interface ReadOptions {
  signal: AbortSignal
  /** How long the source may be silent before its `finish`, in milliseconds. */
  chunkMs: number
  /** Gets each part, in order. */
  onPart: (part: Part) => void
}

/**
 * Reads a call's output up to its `finish`, or to its end when it has none.
 * @throws what breaks it: the signal's reason, an error that the provider sends, the source's own, a silence that was too long
 */
export async function readModelOutput(
  { begun, rest }: Pick<BegunCall, 'begun' | 'rest'>,
  { signal, chunkMs, onPart }: ReadOptions,
): Promise<void> {
  let silent: Error | undefined
  let lastWords: NodeJS.Timeout | undefined
  const leave = (reason: unknown) => void rest.cancel(reason).catch(() => undefined)
  const stop = () => void (lastWords = setTimeout(() => leave(signal.reason), LAST_WORDS_MS))
  const silence = createSilenceLimit(chunkMs, () => leave((silent = chunkTimeout(chunkMs))))
  signal.addEventListener('abort', stop, { once: true })
  if (signal.aborted) stop()

  /** True: it was the last one. */
  function take(part: Part): boolean {
    if (!NO_OUTPUT.has(part.type)) silence.heard()
    onPart(part)
    if (part.type === 'error') throw part.error
    return part.type === 'finish'
  }

  try {
    if (begun.some(take)) return leaveOpen(rest, chunkMs)
    for (;;) {
      const { done, value } = await rest.read()
      if (done) break
      if (take(value)) return leaveOpen(rest, chunkMs)
    }
  } catch (error) {
    leave(error)
    throw signal.aborted ? signal.reason : error
  } finally {
    silence.stop()
    clearTimeout(lastWords)
    signal.removeEventListener('abort', stop)
  }
  signal.throwIfAborted()
  if (silent !== undefined) throw silent
}

/** Reads what comes after the `finish`, so that its connection can be used again; one that stays open is left. */
function leaveOpen(rest: Rest, limitMs: number): void {
  const limit = setTimeout(() => void rest.cancel().catch(() => undefined), limitMs)
  const readOn = async () => {
    while (!(await rest.read()).done);
  }
  void readOn()
    .catch(() => undefined)
    .finally(() => clearTimeout(limit))
}

/** Worded as the SDK's own. */
function chunkTimeout(chunkMs: number): Error {
  return new DOMException(`Chunk timeout of ${chunkMs}ms exceeded`, 'TimeoutError')
}
