// The one place that understands the AI SDK's and the providers' errors.
import { APICallError, LoadAPIKeyError, NoOutputGeneratedError, RetryError, ToolChoiceViolationError } from 'ai'
import { type Reason, REASONS } from '@offshoot/shared/contracts/reason'

export interface ModelFailure {
  reason: Reason
  /** A short sentence that users may read: no keys, no provider bodies. */
  sentence: string
  /** For operators: the cause's code, the provider's status. */
  detail: { status?: number; code?: string; name: string; message: string }
  /** What the provider asked us to wait before another try, if it did. */
  retryAfterMs?: number
}

/** A model stream that ended in a way that is no answer: `other`, `error`, `unknown`, `interrupted`. */
export class UnusableFinishError extends Error {
  override name = 'UnusableFinishError'
}

const OUTPUT_TIMEOUTS: readonly [prefix: string, reason: Reason][] = [
  ['First chunk timeout', 'timeout_first_chunk'],
  ['Chunk timeout', 'timeout_chunk'],
  ['Step timeout', 'timeout_step'],
  ['Total timeout', 'timeout_total'],
]

const BROKEN_CONNECTION = new Set([
  'ECONNRESET',
  'ECONNREFUSED',
  'EPIPE',
  'ETIMEDOUT',
  'ENOTFOUND',
  'EAI_AGAIN',
  'UND_ERR_SOCKET',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
])

/** What a thrown error, an error part or the text of an abort part means for the job. */
export function classifyModelError(error: unknown): ModelFailure {
  const root = unwrap(error)
  if (APICallError.isInstance(root)) return classifyApiCall(root)
  // The last allowed step runs with tools off, and the model called one all the same.
  if (ToolChoiceViolationError.isInstance(root)) return failure('step_limit', root)
  if (LoadAPIKeyError.isInstance(root)) return failure('model_auth', root)
  const message = root instanceof Error ? root.message : String(root)
  for (const [prefix, reason] of OUTPUT_TIMEOUTS) if (message.startsWith(prefix)) return failure(reason, root)
  const code = causeCode(root)
  if (
    (code !== undefined && BROKEN_CONNECTION.has(code)) ||
    message === 'terminated' ||
    root instanceof UnusableFinishError
  ) {
    return failure('upstream_disconnect', root, code)
  }
  if (isProviderErrorEvent(root)) return classifyErrorEvent(root)
  return failure('internal', root, code)
}

function classifyApiCall(error: APICallError): ModelFailure {
  const status = error.statusCode
  const retryAfterMs = parseRetryAfter(error.responseHeaders)
  const known = (reason: Reason): ModelFailure => ({
    ...failure(reason, error, causeCode(error)),
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
  })
  if (status === undefined) return known('upstream_disconnect')
  if (status === 401 || status === 403) return known('model_auth')
  if (status === 429) return known('model_rate_limited')
  if (status === 408 || status === 409 || status >= 500) return known('model_unavailable')
  return known(
    /context.{0,20}(length|window)|too many tokens|maximum context/i.test(error.responseBody ?? error.message)
      ? 'context_overflow'
      : 'model_refused',
  )
}

/** OpenAI sends `{ type: 'error', code, message }` or `{ type: 'response.failed', … }` inside a 200 stream. */
interface ProviderErrorEvent {
  code?: string | null
  type?: string
  message?: string
}

function isProviderErrorEvent(error: unknown): error is ProviderErrorEvent {
  return (
    typeof error === 'object' &&
    error !== null &&
    !(error instanceof Error) &&
    ('message' in error || 'code' in error || 'type' in error)
  )
}

function classifyErrorEvent(event: ProviderErrorEvent): ModelFailure {
  const text = `${event.code ?? ''} ${event.type ?? ''}`
  const wrapped = new Error(event.message ?? 'the model provider sent an error')
  if (/rate_limit/.test(text)) return failure('model_rate_limited', wrapped, event.code ?? undefined)
  if (/context_length/.test(text)) return failure('context_overflow', wrapped, event.code ?? undefined)
  return failure('model_unavailable', wrapped, event.code ?? undefined)
}

function failure(reason: Reason, error: unknown, code?: string): ModelFailure {
  const asError = error instanceof Error ? error : new Error(String(error))
  const status = APICallError.isInstance(error) ? error.statusCode : undefined
  return {
    reason,
    sentence: status === undefined ? REASONS[reason].sentence : `${REASONS[reason].sentence} (status ${status})`,
    detail: {
      name: asError.name,
      message: asError.message.slice(0, 1_000),
      ...(status === undefined ? {} : { status }),
      ...(code === undefined ? {} : { code }),
    },
  }
}

/** The error behind the SDK's wrappers. */
function unwrap(error: unknown): unknown {
  if (RetryError.isInstance(error)) return unwrap(error.lastError)
  if (NoOutputGeneratedError.isInstance(error) && error.cause !== undefined) return unwrap(error.cause)
  return error
}

function causeCode(error: unknown): string | undefined {
  for (let at: unknown = error, depth = 0; at instanceof Error && depth < 5; at = at.cause, depth += 1) {
    if ('code' in at && typeof at.code === 'string') return at.code
  }
  return undefined
}

/** Seconds or an HTTP date. */
function parseRetryAfter(headers: Record<string, string> | undefined): number | undefined {
  const value = headers?.['retry-after']
  if (value === undefined) return undefined
  const seconds = Number(value)
  if (Number.isFinite(seconds)) return Math.max(0, seconds * 1_000)
  const date = Date.parse(value)
  return Number.isNaN(date) ? undefined : Math.max(0, date - Date.now())
}
