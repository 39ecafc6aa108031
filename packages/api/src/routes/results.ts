// Results that are shown in part elsewhere, page by page: a job's own, and those of its tools.
import type { resultPageSchema } from '@offshoot/shared/contracts/read-result'
import { readResultOfJob } from '@offshoot/shared/operations/read-result'
import type { Runtime } from '@offshoot/shared/runtime'
import { Router } from 'express'
import type { z } from 'zod'
import { resultQuerySchema } from '../contracts.ts'
import { notFound } from '../problem.ts'
import { readId, readQuery } from '../read-request.ts'
import { readJob } from './agents.ts'

export function resultRoutes(runtime: Runtime): Router {
  const router = Router()
  router.get('/:jobId/results/:ref', async (request, response) => {
    const query = readQuery(resultQuerySchema, request)
    const job = await readJob(runtime, request)
    const page = await readResultOfJob(runtime, job.id, { ...query, ref: readId(request, 'ref', 'result') })
    if (page === null) throw notFound('result')
    response.json(page satisfies z.infer<typeof resultPageSchema>)
  })
  return router
}
