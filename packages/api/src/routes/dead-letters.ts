// What could not be told to others and was given up: for admins to look at, and to send again.
import { type DeadLetter, listDeadLetters } from '@offshoot/shared/db/outbox'
import { resendDeadLetter } from '@offshoot/shared/operations/resend-dead-letter'
import type { Runtime } from '@offshoot/shared/runtime'
import { type Request, type RequestHandler, Router } from 'express'
import { callerOf } from '../auth.ts'
import {
  type DeadLetterPage,
  deadLetterIdSchema,
  deadLettersQuerySchema,
  type resentDeadLetterSchema,
} from '../contracts.ts'
import { notFound, problem } from '../problem.ts'
import { readBody, readQuery } from '../read-request.ts'
import { z } from 'zod'

export function deadLetterRoutes(runtime: Runtime): Router {
  const router = Router()
  router.use(adminsOnly)

  router.get('/', async (request, response) => {
    const { cursor, limit } = readQuery(deadLettersQuerySchema, request)
    const before = cursor === undefined ? undefined : BigInt(cursor)
    const rows = await listDeadLetters(runtime.database, { before, limit: limit + 1 })
    const deadLetters = rows.slice(0, limit).map(toView)
    const last = deadLetters.at(-1)
    response.json({
      deadLetters,
      ...(rows.length > limit && last !== undefined ? { nextCursor: last.id } : {}),
    } satisfies DeadLetterPage)
  })

  router.post('/:id/resend', async (request, response) => {
    readBody(z.strictObject({}), request)
    const answer = await resendDeadLetter(runtime, readDeadLetterId(request), callerOf(request).userId)
    switch (answer.kind) {
      case 'not_found':
        throw notFound('dead letter')
      case 'refused':
        throw problem(answer.refusal.reason, answer.refusal.error)
      case 'resent': {
        const { id, jobId, kind, key } = answer.entry
        response
          .status(202)
          .json({ id: id.toString(), jobId, kind, key } satisfies z.infer<typeof resentDeadLetterSchema>)
      }
    }
  })

  return router
}

const adminsOnly: RequestHandler = (request, _response, next) => {
  if (!callerOf(request).admin)
    throw problem('not_authorized', 'Only an admin may see dead letters and send them again. Call with an admin’s key.')
  next()
}

function readDeadLetterId(request: Request): bigint {
  const parsed = deadLetterIdSchema.safeParse(request.params['id'])
  if (!parsed.success) throw notFound('dead letter')
  return BigInt(parsed.data)
}

function toView({ id, createdAt, deadAt, lastError, ...row }: DeadLetter): DeadLetterPage['deadLetters'][number] {
  return {
    ...row,
    id: id.toString(),
    createdAt: createdAt.toISOString(),
    deadAt: deadAt.toISOString(),
    ...(lastError === null ? {} : { lastError }),
  }
}
