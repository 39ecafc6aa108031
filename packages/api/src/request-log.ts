// One line a request: what was asked, how it ended, how long it took. Never a body, a query or a key.
import { randomUUID } from 'node:crypto'
import type { Logger } from '@offshoot/shared/logger'
import type { RequestHandler } from 'express'

const GIVEN_ID = /^[\w.:-]{1,100}$/
/** Probes come every few seconds and say nothing while they succeed. */
const QUIET_PATHS = new Set(['/livez', '/readyz', '/api/health', '/metrics'])

/** Gives each request an id (the caller's `x-request-id` if it is a plain one), answers it, and logs the request's end. */
export function logRequests(logger: Logger): RequestHandler {
  return (request, response, next) => {
    const given = request.get('x-request-id')
    const requestId = given !== undefined && GIVEN_ID.test(given) ? given : randomUUID()
    response.set('x-request-id', requestId)
    const startedAt = performance.now()
    const { method, path } = request
    response.once('close', () => {
      const status = response.statusCode
      const line = {
        requestId,
        method,
        path,
        status,
        ms: Math.round(performance.now() - startedAt),
        ...(response.writableFinished ? {} : { cut: true }),
      }
      if (status >= 500) logger.warn(line, 'request')
      else if (QUIET_PATHS.has(path)) logger.debug(line, 'request')
      else logger.info(line, 'request')
    })
    next()
  }
}
