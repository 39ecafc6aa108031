// Numbers for Prometheus, without authentication: those of this process, and those of the whole fleet.
import { fleetMetrics, serviceMetrics } from '@offshoot/shared/fleet-metrics'
import { readFleet } from '@offshoot/shared/operations/read-fleet'
import type { Runtime } from '@offshoot/shared/runtime'
import { shareFor } from '@offshoot/shared/share-for'
import { Router } from 'express'
import { lanesOf } from '../lanes.ts'

/** A storm of scrapes costs one reading a second. */
const SHARE_MS = 1_000

export function metricsRoutes(runtime: Runtime): Router {
  const router = Router()
  const { registry } = runtime.metrics
  const fleet = shareFor(SHARE_MS, () => readFleet(runtime, lanesOf(runtime.config)))

  router.get('/metrics', async (_request, response) => {
    const reading = await fleet()
    const services = { postgres: reading.record !== undefined, redis: reading.queues !== undefined }
    const texts = await Promise.all([serviceMetrics(services), fleetMetrics(reading), registry.metrics()])
    response.set({ 'content-type': registry.contentType, 'cache-control': 'no-store' }).end(texts.join('\n'))
  })

  return router
}
