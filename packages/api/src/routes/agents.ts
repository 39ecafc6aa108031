// Agent jobs over HTTP: spawn, look, follow, abort.
import { toSyncOutput } from '@offshoot/shared/agent-views'
import { listInputSchema } from '@offshoot/shared/contracts/agent-job'
import { isJobNotFound } from '@offshoot/shared/contracts/check'
import { isTerminal } from '@offshoot/shared/contracts/job-state'
import { type ProgramSpawnInput, programSpawnInputSchema } from '@offshoot/shared/contracts/spawn'
import type { AgentJob } from '@offshoot/shared/db/agent-jobs'
import { abortAgent } from '@offshoot/shared/operations/abort-agent'
import { checkAgentWithTotals, findReadableJob } from '@offshoot/shared/operations/check-agent'
import { listAgents, readTree } from '@offshoot/shared/operations/list-agents'
import { asyncOutput, spawnAgent } from '@offshoot/shared/operations/spawn-agent'
import { messageAgent } from '@offshoot/shared/operations/message-agent'
import { retryAgent } from '@offshoot/shared/operations/retry-agent'
import { viewJob } from '@offshoot/shared/operations/subtree-totals'
import { waitForOutcome } from '@offshoot/shared/operations/wait-for-agent'
import type { Runtime } from '@offshoot/shared/runtime'
import { type Request, type Response, Router } from 'express'
import type { z } from 'zod'
import { callerOf, readerOf } from '../auth.ts'
import {
  abortBodySchema,
  messageBodySchema,
  type abortOutputSchema,
  type asyncSpawnSchema,
  type checkOutputSchema,
  checkQuerySchema,
  eventsQuerySchema,
  retryBodySchema,
  spawnQuerySchema,
  type syncSpawnSchema,
} from '../contracts.ts'
import { readEvents, readSteps } from '../job-history.ts'
import { streamJob } from '../live-routes.ts'
import type { OpenRequests } from '../open-requests.ts'
import { describeIssues, notFound, problem, refusedSpawn } from '../problem.ts'
import { retriedJob } from '../retried-job.ts'
import { readBody, readId, readQuery, readTokenHeader, readTraceparent } from '../read-request.ts'

export function agentRoutes(runtime: Runtime, openRequests: OpenRequests): Router {
  const router = Router()

  router.post('/', async (request, response) => {
    const { wait } = readQuery(spawnQuerySchema, request)
    const input = readSpawnInput(request)
    const { userId, onBehalf } = callerOf(request)
    const idempotencyKey = readTokenHeader(request, 'idempotency-key')
    const answer = await spawnAgent(
      runtime,
      {
        userId,
        ...(onBehalf ? { withoutAdminRights: true } : {}),
        delegateUserIds: [],
        depth: 0,
        parentConvoId: null,
        spaceId: null,
        ...(idempotencyKey === undefined ? {} : { idempotencyKey }),
        ...readTraceparent(request),
      },
      input,
    )
    switch (answer.kind) {
      case 'refused':
        throw refusedSpawn(input.mode, answer.refusal)
      case 'conflict':
        throw problem(
          'idempotency_conflict',
          'The idempotency key was used for another request. Use a new key, or send the same body.',
        )
      case 'accepted':
        response.location(`/v1/agents/${answer.job.id}`)
        if (input.mode === 'async')
          response.status(202).json(asyncOutput(answer.job) satisfies z.infer<typeof asyncSpawnSchema>)
        else
          await answerSync(runtime, response, {
            jobId: answer.job.id,
            waitMs: wait * 1_000,
            signal: openRequests.signalOf(response),
          })
    }
  })

  router.get('/', async (request, response) => {
    response.json(await listAgents(runtime, readerOf(request), readQuery(listInputSchema, request)))
  })

  router.get('/:jobId', async (request, response) => {
    const input = { ...readQuery(checkQuerySchema, request), jobId: readId(request, 'jobId', 'job') }
    const output = await checkAgentWithTotals(runtime, readerOf(request), input, openRequests.signalOf(response))
    if (isJobNotFound(output)) throw notFound('job')
    response.json(output satisfies z.infer<typeof checkOutputSchema>)
  })

  router.get('/:jobId/tree', async (request, response) => {
    const tree = await readTree(runtime, readerOf(request), readId(request, 'jobId', 'job'))
    if (tree === null) throw notFound('job')
    response.json(tree)
  })

  router.get('/:jobId/steps', async (request, response) => {
    response.json(await readSteps(runtime.database, await readJob(runtime, request)))
  })

  router.get('/:jobId/events', async (request, response) => {
    const query = readQuery(eventsQuerySchema, request)
    response.json(await readEvents(runtime.database, await readJob(runtime, request), query))
  })

  router.get('/:jobId/stream', async (request, response) => {
    await streamJob({ runtime, openRequests }, request, response, await readJob(runtime, request))
  })

  router.post('/:jobId/abort', async (request, response) => {
    const input = { ...readBody(abortBodySchema, request), jobId: readId(request, 'jobId', 'job') }
    const output = await abortAgent(runtime, readerOf(request), input, callerOf(request).userId)
    if (isJobNotFound(output)) throw notFound('job')
    response.json(output satisfies z.infer<typeof abortOutputSchema>)
  })

  router.post('/:jobId/messages', async (request, response) => {
    const { text, ...options } = readBody(messageBodySchema, request)
    const { id: jobId } = await readJob(runtime, request)
    const actorId = callerOf(request).userId
    const signal = openRequests.signalOf(response)
    response.json(
      await messageAgent(runtime, readerOf(request), { jobId, message: text }, actorId, { ...options, signal }),
    )
  })

  router.post('/:jobId/retry', async (request, response) => {
    const input = { ...readBody(retryBodySchema, request), jobId: readId(request, 'jobId', 'job') }
    const answer = await retryAgent(runtime, readerOf(request), input, callerOf(request).userId)
    response.status(202).json(await viewJob(runtime, retriedJob(answer)))
  })

  return router
}

/** A body that cannot be read is a refused spawn, too. */
function readSpawnInput(request: Request): ProgramSpawnInput {
  const body: unknown = request.body ?? {}
  const parsed = programSpawnInputSchema.safeParse(body)
  if (parsed.success) return parsed.data
  const { detail, errors } = describeIssues('body', parsed.error)
  const mode = typeof body === 'object' && body !== null && 'mode' in body && body.mode === 'async' ? 'async' : 'sync'
  throw refusedSpawn(mode, { reason: 'invalid_request', error: detail }, { errors })
}

/** 200 with the outcome when the job ends in time, else 202 with the job as it stands. */
async function answerSync(
  runtime: Runtime,
  response: Response,
  { jobId, waitMs, signal }: { jobId: string; waitMs: number; signal: AbortSignal },
): Promise<void> {
  const job = await waitForOutcome(runtime, jobId, { limitMs: waitMs, signal })
  if (job === null) throw notFound('job')
  if (!isTerminal(job.state)) response.status(202).json(await viewJob(runtime, job))
  else response.json(toSyncOutput(job, job.messages) satisfies z.infer<typeof syncSpawnSchema>)
}

/** The job that the address names, if it is the caller's. */
export async function readJob(runtime: Runtime, request: Request): Promise<AgentJob> {
  const job = await findReadableJob(runtime, readerOf(request), readId(request, 'jobId', 'job'))
  if (job === null) throw notFound('job')
  return job
}
