// Whether the process lives, whether it can work, and how much there is to do: three answers, without authentication.
import type { Database } from '@offshoot/shared/db/database'
import { sql } from '@offshoot/shared/db/database'
import type { Runtime } from '@offshoot/shared/runtime'
import { Router } from 'express'
import type { Health } from '../contracts.ts'
import { lanesOf } from '../lanes.ts'
import { problem } from '../problem.ts'
import { withLimit } from '@offshoot/shared/with-limit'

/** A service that does not answer within this time counts as away. */
const ANSWER_LIMIT_MS = 2_000

export function healthRoutes(runtime: Runtime, isStopping: () => boolean): Router {
  const router = Router()

  router.get('/livez', (_request, response) => {
    response.json({ status: 'live' })
  })

  router.get('/readyz', async (_request, response) => {
    const postgres = await answers(runtime.database.$queryRaw(sql`select 1`))
    const checks = {
      postgres: postgres ? 'ok' : 'away',
      redis: runtime.signals.pulse.state(),
      stopping: isStopping(),
    }
    if (!postgres || checks.redis !== 'ok' || checks.stopping)
      throw problem('unavailable', 'This process cannot serve at the moment.', { extensions: { checks } })
    response.json({ status: 'ready' })
  })

  router.get('/api/health', async (_request, response) => {
    const [jobs, queue] = await Promise.all([
      countJobs(runtime).catch(() => undefined),
      countDeliveries(runtime).catch(() => undefined),
    ])
    const status = jobs === undefined ? 'down' : queue === undefined ? 'degraded' : 'ok'
    const { workers = null, ...subAgents } = jobs ?? {
      activeJobs: null,
      pendingJobs: null,
      waitingJobs: null,
      totalJobs: null,
    }
    const health: Health = {
      status,
      subAgents,
      queue: { ...(queue ?? { paused: null, depth: null, oldestAgeMs: null }), workers },
    }
    response.status(status === 'down' ? 503 : 200).json(health)
  })

  return router
}

interface JobCounts {
  activeJobs: number
  pendingJobs: number
  waitingJobs: number
  totalJobs: number
  workers: number
}

/** Counts agent jobs of every depth, and the worker processes that were seen within WORKER_LOCK_MS. */
async function countJobs({ database, config }: { database: Database; config: Runtime['config'] }): Promise<JobCounts> {
  const rows = await withLimit(
    database.$queryRaw<JobCounts[]>(sql`
      select
        count(*) filter (where "state" = 'running' and "waitingOn" is null)::int as "activeJobs",
        count(*) filter (where "state" = 'pending')::int as "pendingJobs",
        count(*) filter (where "state" = 'running' and "waitingOn" is not null)::int as "waitingJobs",
        count(*)::int as "totalJobs",
        (select count(*)::int from "offshoot"."Worker"
          where "drainingAt" is null and "seenAt" > clock_timestamp() - make_interval(secs => ${config.WORKER_LOCK_MS / 1000})) as "workers"
      from "offshoot"."AgentJob"`),
    ANSWER_LIMIT_MS,
  )
  const counts = rows[0]
  if (counts === undefined) throw new Error('count(*) answered no row')
  return counts
}

/** The lanes together: paused if one is, all their deliveries, the oldest of them. */
async function countDeliveries({
  deliveries,
  signals,
  config,
}: Runtime): Promise<{ paused: boolean; depth: number; oldestAgeMs: number }> {
  if (!signals.pulse.isOk()) throw new Error('Redis is away')
  const lanes = await withLimit(Promise.all(lanesOf(config).map((lane) => deliveries.counts(lane))), ANSWER_LIMIT_MS)
  return {
    paused: lanes.some((lane) => lane.paused),
    depth: lanes.reduce((sum, lane) => sum + lane.depth, 0),
    oldestAgeMs: Math.round(Math.max(0, ...lanes.map((lane) => lane.oldestAgeMs))),
  }
}

async function answers(question: Promise<unknown>): Promise<boolean> {
  try {
    await withLimit(question, ANSWER_LIMIT_MS)
    return true
  } catch {
    return false
  }
}
