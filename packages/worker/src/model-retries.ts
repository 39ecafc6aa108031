// Retries of a model call by our own policy: only before its first output, and only for reasons that the table of
// reasons allows.
import type { LanguageModelV4StreamPart, LanguageModelV4StreamResult } from '@ai-sdk/provider'
import { type Reason, REASONS } from '@offshoot/shared/contracts/reason'
import type { Logger } from '@offshoot/shared/logger'
import type { ModelMetrics } from '@offshoot/shared/metrics'
import { pause, untilAborted } from './pause.ts'
import { classifyModelError, TryLaterError } from './model-errors.ts'

/** Tries that are made while the slot is held. */
const MAX_TRIES = 4
const FIRST_PAUSE_MS = 500
/** A longer Retry-After is not waited for while a slot is held. */
const LONGEST_PAUSE_MS = 20_000
/** What passes with time, at the provider: a job whose tries are used up for it gives its slot back and tries again. */
const PASSES: ReadonlySet<Reason> = new Set(['model_rate_limited', 'model_unavailable'])

interface CallOptions {
  signal: AbortSignal
  firstChunkMs: number
  metrics: ModelMetrics
  logger: Logger
  jobId: string
}

/** A call that has begun to answer: the parts up to its first output, and the rest. */
export interface BegunCall extends Omit<LanguageModelV4StreamResult, 'stream'> {
  begun: readonly LanguageModelV4StreamPart[]
  rest: ReadableStreamDefaultReader<LanguageModelV4StreamPart>
}

/** Calls the model; `doStream` gets the signal of one try, which is aborted when no output comes in time. */
export async function callModelWithRetries(
  doStream: (signal: AbortSignal) => PromiseLike<LanguageModelV4StreamResult>,
  options: CallOptions,
): Promise<BegunCall> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await callModelOnce(doStream, options)
    } catch (error) {
      options.signal.throwIfAborted()
      const { reason, retryAfterMs } = classifyModelError(error)
      options.metrics.failed(reason)
      const backOffMs = FIRST_PAUSE_MS * 2 ** (tries - 1) * (0.75 + Math.random() / 2)
      const pauseMs = retryAfterMs ?? backOffMs
      if (REASONS[reason].retry !== 'step') throw error
      if (pauseMs > LONGEST_PAUSE_MS) throw new TryLaterError(pauseMs, error)
      if (tries >= MAX_TRIES) throw PASSES.has(reason) ? new TryLaterError(Math.max(pauseMs, backOffMs), error) : error
      options.logger.warn(
        { jobId: options.jobId, reason, tries, pauseMs },
        'model call failed before its first output; trying again',
      )
      await pause(pauseMs, options.signal)
    }
  }
}

async function callModelOnce(
  doStream: (signal: AbortSignal) => PromiseLike<LanguageModelV4StreamResult>,
  { signal, firstChunkMs, metrics }: CallOptions,
): Promise<BegunCall> {
  const startedAt = performance.now()
  const late = new AbortController()
  const limit = setTimeout(
    () => late.abort(new DOMException(`First chunk timeout of ${firstChunkMs}ms exceeded`, 'TimeoutError')),
    firstChunkMs,
  )
  const either = AbortSignal.any([signal, late.signal])
  try {
    const { stream, ...result } = await untilAborted(doStream(either), either)
    const rest = stream.getReader()
    const begun = await untilFirstOutput(rest, either)
    metrics.firstOutput((performance.now() - startedAt) / 1_000)
    return { ...result, begun, rest }
  } finally {
    clearTimeout(limit)
  }
}

/** Reads up to the first part that is output; an error before it is thrown, so that the call may be tried again. */
async function untilFirstOutput(
  reader: ReadableStreamDefaultReader<LanguageModelV4StreamPart>,
  signal: AbortSignal,
): Promise<LanguageModelV4StreamPart[]> {
  const seen: LanguageModelV4StreamPart[] = []
  for (;;) {
    const { done, value } = await untilAborted(reader.read(), signal)
    if (done) return seen
    if (value.type === 'error') {
      await reader.cancel().catch(() => undefined)
      throw value.error
    }
    seen.push(value)
    if (!NO_OUTPUT.has(value.type)) return seen
  }
}

/** Parts that are no output: a model that sends only them is silent. */
export const NO_OUTPUT: ReadonlySet<LanguageModelV4StreamPart['type']> = new Set([
  'stream-start',
  'response-metadata',
  'ping',
  'raw',
])
