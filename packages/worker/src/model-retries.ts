// Retries of a model call by our own policy: only before its first output, and only for reasons that the table of
// reasons allows.
import type { LanguageModelV4StreamPart, LanguageModelV4StreamResult } from '@ai-sdk/provider'
import { REASONS } from '@offshoot/shared/contracts/reason'
import type { Logger } from '@offshoot/shared/logger'
import type { ModelMetrics } from '@offshoot/shared/metrics'
import { pause, untilAborted } from './pause.ts'
import { classifyModelError, TryLaterError } from './model-errors.ts'

const MAX_TRIES = 4
const FIRST_PAUSE_MS = 500
/** A longer Retry-After is not waited for while a slot is held. */
const LONGEST_PAUSE_MS = 20_000

interface CallOptions {
  signal: AbortSignal
  firstChunkMs: number
  metrics: ModelMetrics
  logger: Logger
  jobId: string
}

/** Calls the model; `doStream` gets the signal of one try, which is aborted when no output comes in time. */
export async function callModelWithRetries(
  doStream: (signal: AbortSignal) => PromiseLike<LanguageModelV4StreamResult>,
  options: CallOptions,
): Promise<LanguageModelV4StreamResult> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await callModelOnce(doStream, options)
    } catch (error) {
      options.signal.throwIfAborted()
      const { reason, retryAfterMs } = classifyModelError(error)
      options.metrics.failed(reason)
      const pauseMs = retryAfterMs ?? FIRST_PAUSE_MS * 2 ** (tries - 1) * (0.75 + Math.random() / 2)
      if (REASONS[reason].retry !== 'step' || tries >= MAX_TRIES) throw error
      if (pauseMs > LONGEST_PAUSE_MS) throw new TryLaterError(pauseMs, error)
      options.logger.warn(
        { jobId: options.jobId, reason, tries, pauseMs },
        'model call failed before its first output; trying again',
      )
      await pause(pauseMs, options.signal)
    }
  }
}

/** The SDK's own limit begins only when `doStream` has answered, which is after the first output here. */
async function callModelOnce(
  doStream: (signal: AbortSignal) => PromiseLike<LanguageModelV4StreamResult>,
  { signal, firstChunkMs, metrics }: CallOptions,
): Promise<LanguageModelV4StreamResult> {
  const startedAt = performance.now()
  const late = new AbortController()
  const limit = setTimeout(
    () => late.abort(new DOMException(`First chunk timeout of ${firstChunkMs}ms exceeded`, 'TimeoutError')),
    firstChunkMs,
  )
  const either = AbortSignal.any([signal, late.signal])
  try {
    const result = await untilAborted(doStream(either), either)
    const stream = await untilFirstOutput(result.stream, either)
    metrics.firstOutput((performance.now() - startedAt) / 1_000)
    return { ...result, stream }
  } finally {
    clearTimeout(limit)
  }
}

/** Reads up to the first part that is output; an error before it is thrown, so that the call may be tried again. */
async function untilFirstOutput(
  stream: ReadableStream<LanguageModelV4StreamPart>,
  signal: AbortSignal,
): Promise<ReadableStream<LanguageModelV4StreamPart>> {
  const reader = stream.getReader()
  const seen: LanguageModelV4StreamPart[] = []
  for (;;) {
    const { done, value } = await untilAborted(reader.read(), signal)
    if (done) break
    if (value.type === 'error') {
      await reader.cancel().catch(() => undefined)
      throw value.error
    }
    seen.push(value)
    if (
      value.type !== 'stream-start' &&
      value.type !== 'response-metadata' &&
      value.type !== 'ping' &&
      value.type !== 'raw'
    )
      break
  }
  return new ReadableStream({
    async pull(controller) {
      const next = seen.shift()
      if (next !== undefined) return controller.enqueue(next)
      const { done, value } = await reader.read()
      if (done) controller.close()
      else controller.enqueue(value)
    },
    cancel: (reason) => reader.cancel(reason),
  })
}
