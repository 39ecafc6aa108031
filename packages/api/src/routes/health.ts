// Whether the process lives, whether it can work, and how much there is to do: three answers, without authentication.
import { type Fleet, readFleet } from '@offshoot/shared/operations/read-fleet'
import type { Runtime } from '@offshoot/shared/runtime'
import { askServices } from '@offshoot/shared/services'
import { shareFor } from '@offshoot/shared/share-for'
import { Router } from 'express'
import type { Health } from '../contracts.ts'
import { lanesOf } from '../lanes.ts'
import { problem } from '../problem.ts'

export function healthRoutes(runtime: Runtime, isStopping: () => boolean): Router {
  const router = Router()
  // Those who ask at the same time share one reading.
  const fleet = shareFor(0, () => readFleet(runtime, lanesOf(runtime.config)))

  router.get('/livez', (_request, response) => {
    response.json({ status: 'live' })
  })

  router.get('/readyz', async (_request, response) => {
    const { postgres, redis } = await askServices(runtime)
    const stopping = isStopping()
    const checks = { postgres: postgres ? 'ok' : 'away', redis: runtime.signals.pulse.state(), stopping }
    if (!postgres || !redis || stopping)
      throw problem('unavailable', 'This process cannot serve at the moment.', { extensions: { checks } })
    response.json({ status: 'ready' })
  })

  router.get('/api/health', async (_request, response) => {
    const health = toHealth(await fleet())
    response.status(health.status === 'down' ? 503 : 200).json(health)
  })

  return router
}

/** Jobs of every depth; the lanes together: paused if one is, all their deliveries, the oldest pending job. */
function toHealth({ record, queues }: Fleet): Health {
  const status = record === undefined ? 'down' : queues === undefined ? 'degraded' : 'ok'
  const lanes = record?.lanes
  const counts = queues === undefined ? undefined : [...queues.values()]
  return {
    status,
    subAgents: {
      activeJobs: sum(lanes?.map(({ active }) => active)),
      pendingJobs: sum(lanes?.map(({ pending }) => pending)),
      waitingJobs: sum(lanes?.map(({ waiting }) => waiting.children + waiting.inbox + waiting.retry)),
      totalJobs: record?.totalJobs ?? null,
    },
    queue: {
      paused: counts?.some(({ paused }) => paused) ?? null,
      depth: sum(counts?.map(({ depth }) => depth)),
      oldestAgeMs: lanes === undefined ? null : Math.round(Math.max(0, ...lanes.map((lane) => lane.oldestPendingMs))),
      workers: record?.workers.running ?? null,
    },
  }
}

function sum(numbers: number[] | undefined): number | null {
  return numbers?.reduce((total, number) => total + number, 0) ?? null
}
