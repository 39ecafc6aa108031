// What must still be told to others. A row is written in the transaction it follows from, and marked done by whoever
// told it; the reconciler tells again what nobody told in time.
import type { OutboxMessage } from '../contracts/outbox.ts'
import type { OutboxKind } from './generated/client.ts'
import { Prisma } from './generated/client.ts'
import { type Database, type Queryable, sql } from './database.ts'

export type NewOutboxEntry = OutboxMessage & {
  jobId: string
  /** Deterministic: telling the same thing twice is one row. */
  key: string
}

export interface OutboxEntry {
  id: bigint
  jobId: string
  kind: OutboxKind
  key: string
  payload: unknown
  attempts: number
}

/** The writer has this long to tell it before the reconciler does. */
const WRITER_HAS_MS = 2_000
/** Whoever takes a due entry has this long before another one may: longer than any telling may last. */
const TAKER_HAS_MS = 30_000

export async function insertOutbox(db: Queryable, entries: readonly NewOutboxEntry[]): Promise<OutboxEntry[]> {
  if (entries.length === 0) return []
  const rows = entries.map(
    (entry) =>
      sql`(${entry.jobId}, ${entry.kind}::"offshoot"."OutboxKind", ${entry.key}, ${JSON.stringify(entry.payload)}::jsonb, clock_timestamp() + make_interval(secs => ${WRITER_HAS_MS / 1000}))`,
  )
  return db.$queryRaw<OutboxEntry[]>(sql`
    insert into "offshoot"."Outbox" ("jobId", "kind", "key", "payload", "nextAttemptAt") values ${Prisma.join(rows)}
    on conflict ("key") do nothing
    returning "id", "jobId", "kind", "key", "payload", "attempts"`)
}

/** Takes entries that are due, so that no other process tells them in the next moments. */
export async function takeDueOutbox(database: Database, limit: number): Promise<OutboxEntry[]> {
  return database.$queryRaw<OutboxEntry[]>(sql`
    update "offshoot"."Outbox" set "nextAttemptAt" = clock_timestamp() + make_interval(secs => ${TAKER_HAS_MS / 1000})
    where "id" in (
      select "id" from "offshoot"."Outbox"
      where "doneAt" is null and "deadAt" is null and "nextAttemptAt" <= clock_timestamp()
      order by "id" limit ${limit} for update skip locked)
    returning "id", "jobId", "kind", "key", "payload", "attempts"`)
}

export async function markOutboxDone(database: Database, ids: readonly bigint[]): Promise<void> {
  await database.$executeRaw(
    sql`update "offshoot"."Outbox" set "doneAt" = clock_timestamp() where "id" = any(${ids}::bigint[]) and "doneAt" is null`,
  )
}

/** Notes a failure: try again after `delayMs`, or never again when it is `null` (a dead letter). */
export async function markOutboxFailed(
  database: Database,
  id: bigint,
  error: string,
  delayMs: number | null,
): Promise<void> {
  await database.$executeRaw(sql`
    update "offshoot"."Outbox" set
      "attempts" = "attempts" + 1,
      "lastError" = ${error.slice(0, 500)},
      "nextAttemptAt" = clock_timestamp() + make_interval(secs => ${(delayMs ?? 0) / 1000}),
      "deadAt" = case when ${delayMs === null} then clock_timestamp() end
    where "id" = ${id} and "doneAt" is null`)
}
