// Presence of the processes that run jobs: a row that says when each was last seen, and an advisory lock that a dying
// process loses at once.
import { Client } from 'pg'
import type { Logger } from '../logger.ts'
import { withLimit } from '../with-limit.ts'
import { type Database, SESSION_TIMEOUT_MS, sql } from './database.ts'

/** The first of the two numbers of every presence lock; the second is the worker's `lockKey`. */
const LOCK_CLASS = 0x0ff5_4007

export interface WorkerRow {
  id: string
  lockKey: number
}

export async function insertWorker(
  database: Database,
  worker: { id: string; host: string; pid: number; lanes: string[] },
): Promise<WorkerRow> {
  return database.worker.create({ data: worker, select: { id: true, lockKey: true } })
}

export interface HeldJob {
  id: string
  rootJobId: string
  claimToken: string | null
  abortRequested: boolean
}

/**
 * One query for all jobs of a worker: says that it is alive, and answers what it holds and who wants what to stop. Null:
 * the row is gone, since the worker was declared lost.
 */
export async function heartbeat(database: Database, workerId: string): Promise<HeldJob[] | null> {
  // Arrays in one row: a worker may hold thousands, and asks often.
  const rows = await database.direct.$queryRaw<
    { ids: string[]; rootJobIds: string[]; claimTokens: (string | null)[]; abortsRequested: boolean[] }[]
  >(sql`
    with seen as (update "offshoot"."Worker" set "seenAt" = clock_timestamp() where "id" = ${workerId} returning "id")
    select coalesce(array_agg(j."id") filter (where j."id" is not null), '{}') as "ids",
      array_agg(j."rootJobId") as "rootJobIds", array_agg(j."claimToken") as "claimTokens",
      array_agg(j."abortRequestedAt" is not null) as "abortsRequested"
    from seen left join "offshoot"."AgentJob" j on j."workerId" = seen."id" and j."state" = 'running'
    group by seen."id"`)
  const row = rows[0]
  if (row === undefined) return null
  return row.ids.map((id, at) => ({
    id,
    rootJobId: row.rootJobIds[at] ?? '',
    claimToken: row.claimTokens[at] ?? null,
    abortRequested: row.abortsRequested[at] === true,
  }))
}

export async function markDraining(database: Database, workerId: string): Promise<void> {
  await database.$executeRaw(
    sql`update "offshoot"."Worker" set "drainingAt" = clock_timestamp() where "id" = ${workerId}`,
  )
}

export async function deleteWorker(database: Database, workerId: string): Promise<void> {
  await database.$executeRaw(sql`delete from "offshoot"."Worker" where "id" = ${workerId}`)
}

/** Which workers count: seen within the limit. The others are lost, or about to be declared so. */
export const seenWithin = (lockMs: number) =>
  sql`"seenAt" > clock_timestamp() - make_interval(secs => ${lockMs / 1000})`

/** Whether a worker runs that takes deliveries of this lane. */
export async function hasWorker(database: Database, lane: string, lockMs: number): Promise<boolean> {
  const rows = await database.$queryRaw<unknown[]>(sql`
    select 1 from "offshoot"."Worker" where "drainingAt" is null and ${lane} = any("lanes") and ${seenWithin(lockMs)} limit 1`)
  return rows.length > 0
}

export interface WorkerSight {
  id: string
  seenAt: Date
  lockHeld: boolean
  /** `seenAt` is older than the limit. */
  overdue: boolean
  /** It serves no lane: it runs inline jobs in a host's process. */
  inline: boolean
}

/** Whether the worker in row `w` holds its presence lock. */
export const PRESENCE_LOCK_HELD = sql`exists (
  select 1 from pg_locks l
  where l.locktype = 'advisory' and l.granted and l.objsubid = 2
    and l.database = (select oid from pg_database where datname = current_database())
    and l.classid = ${LOCK_CLASS}::int8::oid and l.objid = w."lockKey"::int8::oid
)`

/** All workers, as Postgres sees them now. */
export async function lookAtWorkers(database: Database, lockMs: number): Promise<WorkerSight[]> {
  return database.$queryRaw<WorkerSight[]>(sql`
    select w."id", w."seenAt",
      ${PRESENCE_LOCK_HELD} as "lockHeld",
      w."seenAt" < clock_timestamp() - make_interval(secs => ${lockMs / 1000}) as "overdue",
      w."lanes" = '{}' as "inline"
    from "offshoot"."Worker" w`)
}

export interface PresenceLock {
  close(): Promise<void>
}

const RETRY_MS = 250
/** How long a session is asked to end; one that fell silent never answers. */
const END_LIMIT_MS = 1_000

/** Holds the worker's advisory lock on a session of its own; when that session breaks, takes the lock again at once. */
export async function holdPresenceLock(options: {
  databaseUrl: string
  worker: WorkerRow
  logger: Logger
  onRegained: () => void
}): Promise<PresenceLock> {
  const { databaseUrl, worker, logger, onRegained } = options
  let closed = false
  let client: Client | undefined
  let retry: NodeJS.Timeout | undefined

  async function take(): Promise<void> {
    const session = new Client({
      connectionString: databaseUrl,
      application_name: 'offshoot-presence',
      keepAlive: true,
      connectionTimeoutMillis: SESSION_TIMEOUT_MS,
      query_timeout: SESSION_TIMEOUT_MS,
    })
    session.on('error', (error) => logger.warn({ error: error.message }, 'presence session broke'))
    session.on('end', () => {
      if (!closed && client === session) takeAgainSoon()
    })
    try {
      await session.connect()
      await session.query('select pg_advisory_lock($1, $2)', [LOCK_CLASS, worker.lockKey])
    } catch (error) {
      await end(session)
      throw error
    }
    if (closed) await end(session)
    else client = session
  }

  function takeAgainSoon(): void {
    clearTimeout(retry)
    retry = setTimeout(() => {
      take().then(onRegained, (error: unknown) => {
        logger.warn({ error }, 'presence lock not regained; trying again')
        if (!closed) takeAgainSoon()
      })
    }, RETRY_MS)
  }

  await take()
  return {
    async close() {
      closed = true
      clearTimeout(retry)
      if (client !== undefined) await end(client)
    },
  }
}

async function end(session: Client): Promise<void> {
  await withLimit(session.end(), END_LIMIT_MS).catch(() => undefined)
}
