// Gauges that are made anew from each reading: what could not be read has no number, and is not 0.
import { Gauge, Registry } from 'prom-client'
import type { DeliveryCounts } from './queue/delivery-queue.ts'
import type { Fleet, FleetRecord } from './operations/read-fleet.ts'
import type { Services } from './services.ts'

/** Which services answer this process, as text for Prometheus. */
export function serviceMetrics(services: Services): Promise<string> {
  const registry = new Registry()
  const up = gaugesOf(registry)('offshoot_up', 'Whether a service answers this process.', ['service'])
  for (const [service, answers] of Object.entries(services)) up.set({ service }, answers ? 1 : 0)
  return registry.metrics()
}

/** All that a reading of the fleet says, as text for Prometheus. */
export function fleetMetrics({ record, queues }: Fleet): Promise<string> {
  const registry = new Registry()
  const gauge = gaugesOf(registry)
  if (record !== undefined) describeRecord(gauge, record)
  if (queues !== undefined) describeQueues(gauge, queues)
  return registry.metrics()
}

function gaugesOf(registry: Registry) {
  return <L extends string>(name: string, help: string, labelNames: readonly L[] = []) =>
    new Gauge({ name, help, labelNames, registers: [registry] })
}

function describeRecord(gauge: ReturnType<typeof gaugesOf>, { lanes, totalJobs, workers, outbox }: FleetRecord): void {
  const slots = gauge('offshoot_slots_needed', 'Jobs that have a worker or need one: what to scale by.', ['lane'])
  const active = gauge('offshoot_jobs_active', 'Jobs that a worker holds.', ['lane'])
  const pending = gauge('offshoot_jobs_pending', 'Jobs to be taken by a worker.', ['lane'])
  const waiting = gauge('offshoot_jobs_waiting', 'Jobs that hold nothing until their wait ends.', ['lane', 'on'])
  const oldest = gauge('offshoot_queue_oldest_age_seconds', 'How long the oldest pending job has been that.', ['lane'])
  const laneWorkers = gauge('offshoot_lane_workers', 'Workers that take deliveries of a lane.', ['lane'])
  for (const work of lanes) {
    const { lane } = work
    slots.set({ lane }, work.slotsNeeded)
    active.set({ lane }, work.active)
    pending.set({ lane }, work.pending)
    for (const [on, jobs] of Object.entries(work.waiting)) waiting.set({ lane, on }, jobs)
    oldest.set({ lane }, work.oldestPendingMs / 1_000)
    laneWorkers.set({ lane }, work.workers)
  }
  gauge('offshoot_jobs_stored', 'Jobs of any state that are in Postgres.').set(totalJobs)
  const fleet = gauge('offshoot_workers', 'Worker processes that were seen of late.', ['state'])
  for (const [state, count] of Object.entries(workers)) fleet.set({ state }, count)
  const due = gauge('offshoot_outbox_due', 'Outbox entries that should have been told by now.', ['kind'])
  const age = gauge('offshoot_outbox_oldest_age_seconds', 'Age of the oldest of those that are due.', ['kind'])
  const dead = gauge('offshoot_dead_letters', 'Outbox entries that were given up.', ['kind'])
  for (const entries of outbox) {
    const { kind } = entries
    due.set({ kind }, entries.due)
    age.set({ kind }, entries.oldestDueMs / 1_000)
    dead.set({ kind }, entries.dead)
  }
}

function describeQueues(gauge: ReturnType<typeof gaugesOf>, queues: ReadonlyMap<string, DeliveryCounts>): void {
  const depth = gauge('offshoot_queue_depth', 'Deliveries in Redis that no worker has taken.', ['lane'])
  const paused = gauge('offshoot_queue_paused', 'Whether the queue of a lane is paused.', ['lane'])
  for (const [lane, counts] of queues) {
    depth.set({ lane }, counts.depth)
    paused.set({ lane }, counts.paused ? 1 : 0)
  }
}
