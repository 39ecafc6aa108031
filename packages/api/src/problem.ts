// How the API says no: RFC 9457 `application/problem+json` with a stable `code`. The one place that turns errors into
// answers. A handler throws `problem(...)`; what was not meant to happen becomes `internal` and is logged.
import type { Reason } from '@offshoot/shared/contracts/reason'
import { REASONS } from '@offshoot/shared/contracts/reason'
import { isTransientDatabaseError } from '@offshoot/shared/db/database-errors'
import type { Logger } from '@offshoot/shared/logger'
import type { Refusal } from '@offshoot/shared/operations/prepare-spawn'
import type { ErrorRequestHandler, RequestHandler, Response } from 'express'
import type { z } from 'zod'

/** Codes that belong to HTTP alone; all others are the reasons of contracts/reason.ts. */
export const HTTP_CODES = {
  unauthorized: { status: 401, title: 'A valid API key is needed.' },
  not_found: { status: 404, title: 'There is nothing here.' },
  read_only: { status: 405, title: 'Only reading is allowed here.' },
  action_off: { status: 405, title: 'This action is switched off.' },
  other_site: { status: 403, title: 'The request comes from another site.' },
  idempotency_conflict: { status: 409, title: 'The idempotency key was used for another request.' },
  layer_conflict: { status: 409, title: 'The state of the layer has another version.' },
  convo_busy: { status: 409, title: 'The convo has a live turn.' },
  body_too_large: { status: 413, title: 'The body is too large.' },
  unsupported_media_type: { status: 415, title: 'The body is not JSON.' },
  unavailable: { status: 503, title: 'A service that is needed does not answer.' },
} as const
export type ProblemCode = keyof typeof HTTP_CODES | Reason

export interface ProblemOptions {
  /** More members of the answer (RFC 9457, section 3.2). */
  extensions?: Record<string, unknown>
  headers?: Record<string, string>
  cause?: unknown
}

/** An answer that says no. Thrown by handlers and middleware, sent by `answerWithProblem`. */
export class ProblemError extends Error {
  override name = 'ProblemError'
  readonly code: ProblemCode
  readonly options: ProblemOptions

  constructor(code: ProblemCode, detail: string, options: ProblemOptions = {}) {
    super(detail, options.cause === undefined ? undefined : { cause: options.cause })
    this.code = code
    this.options = options
  }
}

export function problem(code: ProblemCode, detail: string, options?: ProblemOptions): ProblemError {
  return new ProblemError(code, detail, options)
}

/** The same for an id that does not exist and one that is somebody else's, byte for byte. */
export function notFound(what: 'job' | 'convo' | 'bot' | 'result' | 'layer' | 'dead letter' | 'route'): ProblemError {
  return problem(
    'not_found',
    what === 'route'
      ? 'This address does not exist. See /docs for those that do.'
      : `There is no such ${what}, or it is not yours.`,
  )
}

/** A spawn that did not happen: the problem also carries the refused output of the contract. */
export function refusedSpawn(
  mode: 'sync' | 'async',
  { reason, error }: Omit<Refusal, 'refused'>,
  more: Record<string, unknown> = {},
): ProblemError {
  return problem(reason, error, {
    extensions: { mode, jobId: '', convoId: '', state: 'failed', reason, error, ...more },
  })
}

/** What a schema found wrong with a request, as one sentence and as a list. */
export function describeIssues(
  where: 'body' | 'query' | 'headers',
  error: z.ZodError,
): { detail: string; errors: { path: string; message: string }[] } {
  const errors = error.issues.map((issue) => ({ path: issue.path.map(String).join('.'), message: issue.message }))
  const sentences = errors.slice(0, 5).map(({ path, message }) => (path === '' ? message : `${path}: ${message}`))
  return { detail: `The ${where} is not valid. ${sentences.join('; ')}.`, errors }
}

export const noSuchRoute: RequestHandler = () => {
  throw notFound('route')
}

/**
 * Express's last middleware. An answer that has begun cannot become a problem any more: its connection is cut. `more`
 * gives members that a certain reader needs.
 */
export function answerWithProblem(
  logger: Logger,
  more: (answer: ProblemError) => Record<string, unknown> = () => ({}),
): ErrorRequestHandler {
  // Express knows an error handler by its four parameters.
  return (error: unknown, request, response, _next) => {
    const answer = toProblem(error)
    // What a handler said no to on purpose is no news for the log.
    if (answer !== error && factsOf(answer.code).status >= 500) {
      logger.error(
        { error, method: request.method, route: request.route?.path, requestId: response.get('x-request-id') },
        'a request failed',
      )
    }
    if (response.headersSent) response.destroy()
    else sendProblem(response, answer, more(answer))
  }
}

export function sendProblem(
  response: Response,
  { code, message, options }: ProblemError,
  more: Record<string, unknown> = {},
): void {
  const { status, title } = factsOf(code)
  response
    .status(status)
    .set({ 'content-type': 'application/problem+json; charset=utf-8', 'cache-control': 'no-store', ...options.headers })
    .end(
      JSON.stringify({
        type: `urn:offshoot:problem:${code}`,
        title,
        status,
        detail: message,
        code,
        ...options.extensions,
        ...more,
      }),
    )
}

export function factsOf(code: ProblemCode): { status: number; title: string } {
  if (code in HTTP_CODES) return HTTP_CODES[code as keyof typeof HTTP_CODES]
  const { httpStatus, sentence } = REASONS[code as Reason]
  return { status: httpStatus, title: sentence }
}

function toProblem(error: unknown): ProblemError {
  if (error instanceof ProblemError) return error
  const { type, status } = errorFacts(error)
  switch (type) {
    case 'entity.too.large':
      return problem('body_too_large', 'A body may have at most 1 MB.', {
        cause: error,
        headers: { connection: 'close' },
      })
    case 'entity.parse.failed':
      return problem('invalid_request', 'The body is not valid JSON.', { cause: error })
    case 'encoding.unsupported':
    case 'charset.unsupported':
      return problem(
        'unsupported_media_type',
        'Send the body as UTF-8 JSON, plain or compressed with gzip, deflate or br.',
        { cause: error },
      )
    default:
  }
  // Express and its body parser name a status where the request is to blame (an address that cannot be decoded, say).
  if (status !== undefined && status >= 400 && status < 500)
    return problem('invalid_request', 'The request cannot be read.', { cause: error })
  if (isTransientDatabaseError(error))
    return problem('unavailable', 'The database does not answer. Try again in a moment.', {
      cause: error,
      headers: { 'retry-after': '1' },
    })
  return problem(
    'internal',
    'Something went wrong inside Offshoot. The log has more under the request id of this answer.',
    { cause: error },
  )
}

function errorFacts(error: unknown): { type?: string; status?: number } {
  if (typeof error !== 'object' || error === null) return {}
  return {
    ...('type' in error && typeof error.type === 'string' ? { type: error.type } : {}),
    ...('status' in error && typeof error.status === 'number' ? { status: error.status } : {}),
  }
}
