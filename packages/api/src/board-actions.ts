// What the dashboard's buttons do. These routes stand before the board's own and are the only ones that change anything:
// a delivery is acted on through its agent job, by the same operations that the API uses; what has no counterpart there
// is switched off (docs/decisions/0019). The table of routes is docs/operations/dashboard.md.
import { deliveryDataSchema, type DeliveryData } from '@offshoot/shared/contracts/delivery'
import { isTerminal } from '@offshoot/shared/contracts/job-state'
import { abortAgent } from '@offshoot/shared/operations/abort-agent'
import { retryAgent } from '@offshoot/shared/operations/retry-agent'
import { queueName } from '@offshoot/shared/queue/delivery-queue'
import { isHeldByWorker } from '@offshoot/shared/queue/queue-errors'
import type { Runtime } from '@offshoot/shared/runtime'
import { LimitError, withLimit } from '@offshoot/shared/with-limit'
import type { Job, Queue } from 'bullmq'
import { type Request, Router } from 'express'
import { lanesOf } from './lanes.ts'
import { problem, ProblemError } from './problem.ts'
import { retriedJob } from './retried-job.ts'

const REDIS_LIMIT_MS = 5_000
/** Jobs that "retry all" works on at a time. */
const RETRIES_AT_A_TIME = 5
/** Refused retries that an answer tells of. */
const REFUSALS_TOLD = 3

/** `actorOf` says who stands in a job's history as the one who did it. */
export function boardActions(runtime: Runtime, actorOf: (request: Request) => string): Router {
  const router = Router()

  router.put('/api/queues/:queue/retry/:status', async (request, response) => {
    if (request.params.status !== 'failed')
      throw problem('action_off', 'Only failed deliveries can be retried all at once.')
    response.json(await retryAllFailed(runtime, queueOf(runtime, request.params.queue), actorOf(request)))
  })

  router.put('/api/queues/:queue/clean/:status', async (request, response) => {
    const { queue, status } = request.params
    if (status !== 'completed' && status !== 'failed')
      throw problem('action_off', 'Only completed and failed deliveries can be cleaned all at once: they are history.')
    await fromRedis(queueOf(runtime, queue).clean(0, Number.MAX_SAFE_INTEGER, status))
    logAction(runtime, request, actorOf(request))
    response.json({})
  })

  // Without a queue's name: all of them.
  for (const action of ['pause', 'resume'] as const) {
    router.put(`/api/queues/${action}`, async (request, response) => {
      for (const lane of lanesOf(runtime.config)) await fromRedis(runtime.deliveries.lane(lane)[action]())
      logAction(runtime, request, actorOf(request))
      response.json({})
    })
    router.put<{ queue: string }>(`/api/queues/:queue/${action}`, async (request, response) => {
      await fromRedis(queueOf(runtime, request.params.queue)[action]())
      logAction(runtime, request, actorOf(request))
      response.json({})
    })
  }

  router.put('/api/queues/:queue/:delivery/retry', async (request, response) => {
    const { data } = await findDelivery(runtime, request.params)
    retriedJob(await retryAgent(runtime, reader(actorOf(request)), { jobId: data.agentJobId }, actorOf(request)))
    response.status(204).end()
  })

  router.put('/api/queues/:queue/:delivery/clean', async (request, response) => {
    const { delivery, data } = await findDelivery(runtime, request.params)
    if (await carriesLiveJob(runtime, delivery, data)) await abortJob(runtime, data.agentJobId, actorOf(request))
    else await removeDelivery(delivery)
    logAction(runtime, request, actorOf(request))
    response.status(204).end()
  })

  return router
}

/** An admin's eyes: the board shows every job. */
const reader = (userId: string) => ({ userId, admin: true })

function queueOf(runtime: Runtime, name: string): Queue {
  const lane = lanesOf(runtime.config).find((each) => queueName(each) === name)
  if (lane === undefined) throw problem('not_found', 'The board has no such queue.')
  return runtime.deliveries.lane(lane)
}

async function findDelivery(
  runtime: Runtime,
  { queue, delivery: id }: { queue: string; delivery: string },
): Promise<{ delivery: Job; data: DeliveryData }> {
  const delivery: Job | undefined = await fromRedis(queueOf(runtime, queue).getJob(id))
  if (delivery === undefined) throw problem('not_found', 'The queue does not have this delivery any more.')
  const { success, data } = deliveryDataSchema.safeParse(delivery.data)
  if (!success) throw problem('invalid_request', 'This is not a delivery of an agent job.')
  return { delivery, data }
}

/** False for history, and for a delivery that a later one has replaced: taking it away changes nothing. */
async function carriesLiveJob(runtime: Runtime, delivery: Job, data: DeliveryData): Promise<boolean> {
  const state = await fromRedis(delivery.getState())
  if (state === 'completed' || state === 'failed') return false
  const job = await runtime.database.agentJob.findUnique({ where: { id: data.agentJobId } })
  return job !== null && !isTerminal(job.state) && job.deliverySeq === data.deliverySeq
}

/** Who takes a job's delivery away wants its end. The abort takes the delivery out of the queue. */
async function abortJob(runtime: Runtime, jobId: string, actor: string): Promise<void> {
  const { state, note } = await abortAgent(runtime, reader(actor), { jobId }, actor)
  // `running`: the wish is stored, and its worker obeys a little later.
  if (state !== 'aborted' && state !== 'running') throw problem('invalid_request', note ?? `The job is ${state}.`)
}

async function removeDelivery(delivery: Job): Promise<void> {
  try {
    await fromRedis(delivery.remove())
  } catch (error) {
    if (!isHeldByWorker(error)) throw error
    throw problem('invalid_request', 'A worker holds this delivery. Look again in a moment.', { cause: error })
  }
}

/** Every failed job that has a failed delivery. Those that were retried since are not failed any more. */
async function retryAllFailed(runtime: Runtime, queue: Queue, actor: string): Promise<{ retried: number; skipped: 0 }> {
  const deliveries: Job[] = await fromRedis(queue.getJobs(['failed']))
  const ids = new Set(deliveries.map(({ data }) => deliveryDataSchema.safeParse(data).data?.agentJobId ?? ''))
  const jobs = await runtime.database.agentJob.findMany({
    where: { id: { in: [...ids] }, state: 'failed' },
    select: { id: true },
    orderBy: { finishedAt: 'asc' },
  })
  const refusals: string[] = []
  for (let at = 0; at < jobs.length; at += RETRIES_AT_A_TIME) {
    const few = jobs.slice(at, at + RETRIES_AT_A_TIME)
    await Promise.all(
      few.map(async ({ id: jobId }) => {
        try {
          retriedJob(await retryAgent(runtime, reader(actor), { jobId }, actor))
        } catch (error) {
          if (!(error instanceof ProblemError)) throw error
          refusals.push(`Job ${jobId}: ${error.message}`)
        }
      }),
    )
  }
  if (refusals.length > 0) {
    const told = refusals.slice(0, REFUSALS_TOLD).join(' ')
    throw problem('invalid_request', `${refusals.length} of ${jobs.length} failed jobs were not retried. ${told}`)
  }
  return { retried: jobs.length, skipped: 0 }
}

/** @throws ProblemError `unavailable` when Redis does not answer in time */
async function fromRedis<T>(question: Promise<T>): Promise<T> {
  try {
    return await withLimit(question, REDIS_LIMIT_MS)
  } catch (error) {
    if (!(error instanceof LimitError)) throw error
    throw problem('unavailable', 'Redis did not answer in time. Look at the queue again in a moment.', { cause: error })
  }
}

/** What touches no job has no history: the log tells who did it. */
function logAction({ logger }: Runtime, { path }: Pick<Request, 'path'>, actor: string): void {
  logger.info({ actor, path }, 'an action on the dashboard')
}
