// The edge: what comes in is parsed here and trusted afterwards.
import { storedText } from '@offshoot/shared/db/stored-value'
import express, { type Request, type RequestHandler } from 'express'
import { z } from 'zod'
import { describeIssues, notFound, problem } from './problem.ts'

/** Bytes of a body, after decompression. */
const BODY_LIMIT = '1mb'
/** Lists and objects within each other. */
const MAX_DEPTH = 100

/** Reads JSON bodies. Anything else that has a body is refused; a request without one has `undefined`. */
export const readJsonBodies: RequestHandler[] = [
  (request, _response, next) => {
    if (hasBody(request) && request.is('json') === false)
      throw problem('unsupported_media_type', 'Send JSON, with content-type: application/json.')
    next()
  },
  express.json({ limit: BODY_LIMIT, strict: true }),
  (request, _response, next) => {
    request.body = legible(request.body)
    next()
  },
]

/** @throws ProblemError `invalid_request` that says what is wrong */
export function readBody<T>(schema: z.ZodType<T>, request: Request): T {
  return read(schema, request.body ?? {}, 'body')
}

/** @throws ProblemError `invalid_request` that says what is wrong */
export function readQuery<T>(schema: z.ZodType<T>, request: Request): T {
  return read(schema, legible(request.query), 'query')
}

/** An id in the address. One that cannot be an id is as unknown as any other. */
export function readId(request: Request, name: string, what: 'job' | 'convo' | 'bot' | 'result' | 'layer'): string {
  const id = request.params[name]
  if (typeof id !== 'string' || id.length > 200 || id.includes('\u0000')) throw notFound(what)
  return id
}

const TRACEPARENT = /^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/

/** The caller's trace, to be joined by the job's; a malformed one is ignored, as W3C Trace Context asks for. */
export function readTraceparent(request: Request): { traceparent?: string } {
  const traceparent = request.get('traceparent')
  return traceparent !== undefined && TRACEPARENT.test(traceparent) ? { traceparent } : {}
}

const visibleAscii = z.string().regex(/^[\x21-\x7e]{1,200}$/, 'must be 1 to 200 visible ASCII characters')

/** @throws ProblemError `invalid_request` when the header is there and is no token */
export function readTokenHeader(request: Request, name: string): string | undefined {
  const value = request.get(name)
  if (value === undefined) return undefined
  const parsed = visibleAscii.safeParse(value)
  if (!parsed.success)
    throw problem('invalid_request', `The header ${name} ${parsed.error.issues[0]?.message ?? 'is not valid'}.`)
  return parsed.data
}

/** All text as Postgres takes it, in keys and values: legible where it held U+0000, and well-formed. */
function legible(value: unknown, depth = 0): unknown {
  if (typeof value === 'string') return storedText(value)
  if (value === null || typeof value !== 'object') return value
  if (depth === MAX_DEPTH) throw problem('invalid_request', `Lists and objects may be nested ${MAX_DEPTH} deep.`)
  if (Array.isArray(value)) return value.map((item) => legible(item, depth + 1))
  // zod would leave this one out without a word.
  if (Object.hasOwn(value, '__proto__')) throw problem('invalid_request', 'A field may not be named "__proto__".')
  return Object.fromEntries(Object.entries(value).map(([key, field]) => [storedText(key), legible(field, depth + 1)]))
}

function hasBody(request: Request): boolean {
  return request.headers['transfer-encoding'] !== undefined || Number(request.headers['content-length'] ?? 0) > 0
}

function read<T>(schema: z.ZodType<T>, value: unknown, where: 'body' | 'query'): T {
  const parsed = schema.safeParse(value)
  if (parsed.success) return parsed.data
  const { detail, errors } = describeIssues(where, parsed.error)
  throw problem('invalid_request', detail, { extensions: { errors } })
}
