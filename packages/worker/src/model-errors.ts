// The one place that understands the AI SDK's and the providers' errors.
import {
  APICallError,
  InvalidDataContentError,
  InvalidPromptError,
  LoadAPIKeyError,
  MessageConversionError,
  NoOutputGeneratedError,
  RetryError,
  StreamProviderError,
  ToolChoiceViolationError,
  UnsupportedFunctionalityError,
} from 'ai'
import { type Reason, REASONS } from '@offshoot/shared/contracts/reason'
import { headOf } from '@offshoot/shared/contracts/text'

export interface ModelFailure {
  reason: Reason
  /** A short sentence that users may read: no keys, no provider bodies. */
  sentence: string
  /** For operators: the cause's code, the provider's status. */
  detail: { status?: number; code?: string; name: string; message: string }
  /** What the provider asked us to wait before another try, if it did. */
  retryAfterMs?: number
}

/** The SDK or the provider cannot send what the conversation holds, such as a file of a type that the model does not take. */
const UNUSABLE_INPUT = [
  InvalidDataContentError,
  InvalidPromptError,
  MessageConversionError,
  UnsupportedFunctionalityError,
]

/** Nothing of the step was said, and the provider wants us to wait longer than a slot should be held, or refuses again and again. */
export class TryLaterError extends Error {
  override name = 'TryLaterError'
  readonly afterMs: number

  constructor(afterMs: number, cause: unknown) {
    super(`try again in ${afterMs} ms`, { cause })
    this.afterMs = afterMs
  }
}

/** A model stream that ended in a way that is no answer: `other`, `error`, `unknown`, `interrupted`. */
export class UnusableFinishError extends Error {
  override name = 'UnusableFinishError'
}

/** The SDK words a limit that has passed like this, with the error's name before it in an abort part. */
const TIMEOUT = /\b(First chunk|Chunk|Step|Total) timeout of \d+ms exceeded/
const TIMEOUT_REASONS: Readonly<Record<string, Reason>> = {
  'First chunk': 'timeout_first_chunk',
  Chunk: 'timeout_chunk',
  Step: 'timeout_step',
  Total: 'timeout_total',
}

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
  if (UNUSABLE_INPUT.some((kind) => kind.isInstance(root))) return failure('invalid_request', root)
  if (LoadAPIKeyError.isInstance(root)) return failure('model_auth', root)
  if (StreamProviderError.isInstance(root) || isProviderErrorEvent(root)) return classifyErrorEvent(root)
  const message = root instanceof Error ? root.message : String(root)
  const timeout = TIMEOUT_REASONS[TIMEOUT.exec(message)?.[1] ?? '']
  if (timeout !== undefined) return failure(timeout, root)
  const code = causeCode(root)
  if (
    (code !== undefined && BROKEN_CONNECTION.has(code)) ||
    message === 'terminated' ||
    root instanceof UnusableFinishError ||
    NoOutputGeneratedError.isInstance(root)
  ) {
    return failure('upstream_disconnect', root, code)
  }
  return failure('internal', root, code)
}

function classifyApiCall(error: APICallError): ModelFailure {
  const status = error.statusCode
  const retryAfterMs = parseRetryAfter(error.responseHeaders)
  const known = (reason: Reason): ModelFailure => ({
    ...failure(reason, error, causeCode(error)),
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
  })
  return known(reasonOfStatus(status, error.responseBody ?? error.message))
}

/** No status: there was no answer. One below 400: the answer could not be read to its end. */
function reasonOfStatus(status: number | undefined, text: string): Reason {
  if (status === undefined || status < 400) return 'upstream_disconnect'
  if (status === 401 || status === 403) return 'model_auth'
  if (status === 429) return 'model_rate_limited'
  if (status === 408 || status === 409 || status >= 500) return 'model_unavailable'
  return /context.{0,20}(length|window)|too many tokens|maximum context/i.test(text)
    ? 'context_overflow'
    : 'model_refused'
}

/** An error that a provider sends inside a 200 stream, as it comes from the provider or from the SDK. */
interface ProviderErrorEvent {
  code?: string | number | null
  type?: string
  message?: string
  statusCode?: number
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
  const kind = `${event.code ?? ''} ${event.type ?? ''}`
  const message = event.message ?? 'the model provider sent an error'
  const wrapped = event instanceof Error ? event : new Error(message)
  const fail = (reason: Reason): ModelFailure =>
    failure(
      reason,
      wrapped,
      event.code === null || event.code === undefined ? undefined : String(event.code),
      event.statusCode,
    )
  if (/rate_limit/.test(kind)) return fail('model_rate_limited')
  if (/context_length/.test(kind)) return fail('context_overflow')
  return fail(event.statusCode === undefined ? 'model_unavailable' : reasonOfStatus(event.statusCode, message))
}

function failure(reason: Reason, error: unknown, code?: string, errorStatus?: number): ModelFailure {
  const asError = error instanceof Error ? error : new Error(String(error))
  const status = APICallError.isInstance(error) ? error.statusCode : errorStatus
  return {
    reason,
    sentence: status === undefined ? REASONS[reason].sentence : `${REASONS[reason].sentence} (status ${status})`,
    detail: {
      name: asError.name,
      message: headOf(asError.message, 1_000),
      ...(status === undefined ? {} : { status }),
      ...(code === undefined ? {} : { code }),
    },
  }
}

/** The error behind the SDK's wrappers. */
function unwrap(error: unknown): unknown {
  if (error instanceof TryLaterError) return unwrap(error.cause)
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
