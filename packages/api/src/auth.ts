// Who is calling: an API key is a user. A service key may say for whom it calls, and then has that user's rights, but
// never an admin's.
import { ensureUser, findApiKey } from '@offshoot/shared/db/users'
import type { JobReader } from '@offshoot/shared/operations/readable-jobs'
import type { Runtime } from '@offshoot/shared/runtime'
import type { Request, RequestHandler } from 'express'
import { problem } from './problem.ts'
import { readTokenHeader } from './read-request.ts'

export interface Caller {
  userId: string
  admin: boolean
  /** True when a service acts for the user. */
  onBehalf: boolean
}

const callers = new WeakMap<Request, Caller>()
/** Users whose row is known to be there; emptied when it grows large. */
const MAX_KNOWN_USERS = 10_000

/** Lets a request pass only with a valid API key, and makes the caller's row on first use. */
export function authenticate(runtime: Pick<Runtime, 'database'>): RequestHandler {
  const known = new Set<string>()
  return async (request, _response, next) => {
    const key = bearerToken(request.get('authorization'))
    const caller =
      key === undefined ? undefined : await findCaller(runtime, key, readTokenHeader(request, 'x-on-behalf-of'))
    if (caller === undefined)
      throw unauthorized('Bearer', 'Send an API key that is valid: Authorization: Bearer <api key>.')
    if (!known.has(caller.userId)) {
      await ensureUser(runtime.database, caller.userId)
      if (known.size >= MAX_KNOWN_USERS) known.clear()
      known.add(caller.userId)
    }
    callers.set(request, caller)
    next()
  }
}

/** @throws Error on a route without `authenticate` before it */
export function callerOf(request: Request): Caller {
  const caller = callers.get(request)
  if (caller === undefined)
    throw new Error(`${request.originalUrl} has no caller: put authenticate() before this route.`)
  return caller
}

export function readerOf(request: Request): JobReader {
  const { userId, admin } = callerOf(request)
  return { userId, admin }
}

/**
 * Whom a key stands for; undefined for an unknown or revoked key.
 * @throws ProblemError `not_authorized` when a key that is no service key names another user
 */
export async function findCaller(
  { database }: Pick<Runtime, 'database'>,
  key: string,
  onBehalfOf: string | undefined,
): Promise<Caller | undefined> {
  const owner = await findApiKey(database, key)
  if (owner === undefined) return undefined
  if (onBehalfOf === undefined) return { userId: owner.userId, admin: owner.admin, onBehalf: false }
  if (owner.kind !== 'service')
    throw problem(
      'not_authorized',
      'Only a service key may send X-On-Behalf-Of. Leave the header out to call as yourself.',
    )
  return { userId: onBehalfOf, admin: false, onBehalf: true }
}

export function bearerToken(authorization: string | undefined): string | undefined {
  return /^Bearer +(\S+) *$/i.exec(authorization ?? '')?.[1]
}

export function unauthorized(scheme: 'Bearer' | 'Basic', detail: string) {
  return problem('unauthorized', detail, {
    headers: { 'www-authenticate': `${scheme} realm="Offshoot"${scheme === 'Basic' ? ', charset="UTF-8"' : ''}` },
  })
}
