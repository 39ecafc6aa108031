// How much there is to do, and who does it, over all processes. One statement that looks only at what has not ended,
// whatever the length of the history: jobs by partial indexes, their number in all by its tally. Postgres says what work
// there is, also while Redis is away; Redis says only what stands in its queues.
import { OUTBOX_KINDS } from '../contracts/outbox.ts'
import { sql } from '../db/database.ts'
import { JOBS_IN_ALL } from '../db/job-tally.ts'
import { seenWithin } from '../db/workers.ts'
import type { DeliveryCounts } from '../queue/delivery-queue.ts'
import type { Runtime } from '../runtime.ts'
import { SERVICE_LIMIT_MS } from '../services.ts'
import { withLimit } from '../with-limit.ts'

/** Lanes that are told apart: people choose their names. What is in further ones is told as one. */
const MAX_LANES = 100
const OTHER_LANES = '(other)'

export interface LaneWork {
  lane: string
  /** Held by a worker, or by the process of an inline job. */
  active: number
  /** To be taken by one. */
  pending: number
  /** Holding nothing until their wait ends. */
  waiting: { children: number; inbox: number; retry: number }
  /** Of active and pending those that workers have or are to take: an inline job is its own process's. */
  slotsNeeded: number
  /** How long the oldest job that is pending for a worker has been that; 0 without one. */
  oldestPendingMs: number
  /** Worker processes that serve the lane and take deliveries. */
  workers: number
}

export interface OutboxWork {
  kind: string
  /** Not told, although its writer should have. */
  due: number
  /** Age of the oldest of those; 0 without one. */
  oldestDueMs: number
  /** Given up. */
  dead: number
}

export interface FleetRecord {
  lanes: LaneWork[]
  totalJobs: number
  /** Without hosts that run inline jobs. */
  workers: { running: number; draining: number }
  outbox: OutboxWork[]
}

export interface Fleet {
  /** Absent while Postgres is away. */
  record?: FleetRecord
  /** By lane; absent while Redis is away. */
  queues?: ReadonlyMap<string, DeliveryCounts>
}

/** Reads it all; `lanes` are told of also when nothing is in them. Never rejects. */
export async function readFleet(runtime: Runtime, lanes: readonly string[]): Promise<Fleet> {
  const { logger } = runtime
  const record = await readRecord(runtime, lanes).catch((error: unknown) => {
    logger.warn({ error }, 'Postgres did not say what there is to do')
    return undefined
  })
  const queues = await readQueues(runtime, record?.lanes.map(({ lane }) => lane) ?? lanes).catch((error: unknown) => {
    logger.debug({ error }, 'Redis did not say what is in its queues')
    return undefined
  })
  return { ...(record === undefined ? {} : { record }), ...(queues === undefined ? {} : { queues }) }
}

type LaneRow = Omit<LaneWork, 'waiting' | 'workers'> & LaneWork['waiting']

interface FleetRow {
  lanes: LaneRow[]
  laneWorkers: { lane: string; workers: number }[]
  workers: { running: number; draining: number }
  outbox: OutboxWork[]
  totalJobs: number
}

/** Everything that is read of Postgres. Exported for the test that looks at its plan. */
export function fleetQuery(lockMs: number) {
  return sql`
    select
      (select coalesce(json_agg(l), '[]') from (
        select "lane",
          count(*) filter (where "state" = 'running' and "waitingOn" is null) as "active",
          count(*) filter (where "state" = 'pending') as "pending",
          count(*) filter (where "waitingOn" = 'children') as "children",
          count(*) filter (where "waitingOn" = 'inbox') as "inbox",
          count(*) filter (where "waitingOn" = 'retry') as "retry",
          count(*) filter (where "waitingOn" is null and "runner" = 'queue') as "slotsNeeded",
          coalesce(extract(epoch from clock_timestamp()
            - min("deliveredAt") filter (where "state" = 'pending' and "runner" = 'queue')) * 1000, 0)::float8 as "oldestPendingMs"
        from "offshoot"."AgentJob" where "state" in ('pending', 'running') group by "lane") l) as "lanes",
      (select coalesce(json_agg(w), '[]') from (
        select lane, count(*) as "workers" from "offshoot"."Worker", unnest("lanes") lane
        where "drainingAt" is null and ${seenWithin(lockMs)} group by lane) w) as "laneWorkers",
      (select json_build_object(
          'running', count(*) filter (where "drainingAt" is null), 'draining', count(*) filter (where "drainingAt" is not null))
        from "offshoot"."Worker" where "lanes" <> '{}' and ${seenWithin(lockMs)}) as "workers",
      (select coalesce(json_agg(o), '[]') from (
        select coalesce(d."kind", x."kind") as "kind", coalesce(d."due", 0) as "due", coalesce(x."dead", 0) as "dead",
          coalesce(extract(epoch from clock_timestamp() - d."oldest") * 1000, 0)::float8 as "oldestDueMs"
        from (select "kind", count(*) as "due", min("createdAt") as "oldest" from "offshoot"."Outbox"
            where "doneAt" is null and "deadAt" is null and ("attempts" > 0 or "nextAttemptAt" <= clock_timestamp())
            group by "kind") d
          full join (select "kind", count(*) as "dead" from "offshoot"."Outbox"
            where "deadAt" is not null and "doneAt" is null group by "kind") x on x."kind" = d."kind") o) as "outbox",
      ${JOBS_IN_ALL} as "totalJobs"`
}

async function readRecord({ database, config }: Runtime, known: readonly string[]): Promise<FleetRecord> {
  const rows = await withLimit(database.$queryRaw<FleetRow[]>(fleetQuery(config.WORKER_LOCK_MS)), SERVICE_LIMIT_MS)
  const row = rows[0]
  if (row === undefined) throw new Error('The statement answered no row.')
  return {
    lanes: toLaneWork(row, known),
    totalJobs: row.totalJobs,
    workers: row.workers,
    outbox: OUTBOX_KINDS.map(
      (kind) => row.outbox.find((each) => each.kind === kind) ?? { kind, due: 0, oldestDueMs: 0, dead: 0 },
    ),
  }
}

/** The lanes that are known come first, then those with the most to do. */
function toLaneWork({ lanes, laneWorkers }: FleetRow, known: readonly string[]): LaneWork[] {
  const busiest = lanes.toSorted((a, b) => b.pending + b.active - a.pending - a.active).map(({ lane }) => lane)
  const names = [...new Set([...known, ...laneWorkers.map(({ lane }) => lane), ...busiest])]
  const told = new Set(names.slice(0, MAX_LANES))
  const work = new Map<string, LaneWork>()
  const of = (lane: string): LaneWork => {
    const name = told.has(lane) ? lane : OTHER_LANES
    const present = work.get(name) ?? {
      lane: name,
      active: 0,
      pending: 0,
      waiting: { children: 0, inbox: 0, retry: 0 },
      slotsNeeded: 0,
      oldestPendingMs: 0,
      workers: 0,
    }
    work.set(name, present)
    return present
  }
  for (const lane of told) of(lane)
  for (const { lane, active, pending, children, inbox, retry, slotsNeeded, oldestPendingMs } of lanes) {
    const sum = of(lane)
    sum.active += active
    sum.pending += pending
    sum.waiting.children += children
    sum.waiting.inbox += inbox
    sum.waiting.retry += retry
    sum.slotsNeeded += slotsNeeded
    sum.oldestPendingMs = Math.max(sum.oldestPendingMs, oldestPendingMs)
  }
  for (const { lane, workers } of laneWorkers) of(lane).workers += workers
  return [...work.values()]
}

async function readQueues(
  { deliveries, signals }: Runtime,
  lanes: readonly string[],
): Promise<ReadonlyMap<string, DeliveryCounts>> {
  if (!signals.pulse.isOk()) throw new Error('Redis is away')
  const counts = lanes
    .filter((lane) => lane !== OTHER_LANES)
    .map(async (lane): Promise<[string, DeliveryCounts]> => [lane, await deliveries.counts(lane)])
  return new Map(await withLimit(Promise.all(counts), SERVICE_LIMIT_MS))
}
