// What must still be told to others. A row is written in the transaction it follows from, and marked done by whoever
// told it; the reconciler tells again what nobody told in time.
import type { OutboxMessage } from '../contracts/outbox.ts'
import type { JobFinding } from '../contracts/finding.ts'
import type { NewEvent } from './events.ts'
import { headOf } from '../contracts/text.ts'
import type { OutboxKind } from './generated/client.ts'
import { type Database, type Queryable, type Sql, sql } from './database.ts'
import { storedText } from './stored-value.ts'

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

/** A statement, also for use in a `with`. `only`: a condition on "jobId". */
export function outboxInsert(entries: readonly NewOutboxEntry[], only: Sql = sql`true`): Sql {
  return sql`
    insert into "offshoot"."Outbox" ("jobId", "kind", "key", "payload", "nextAttemptAt")
    select "jobId", "kind"::"offshoot"."OutboxKind", "key", "payload"::jsonb,
      clock_timestamp() + make_interval(secs => ${WRITER_HAS_MS / 1000})
    from unnest(
      ${entries.map(({ jobId }) => jobId)}::text[], ${entries.map(({ kind }) => kind)}::text[],
      ${entries.map(({ key }) => key)}::text[], ${entries.map(({ payload }) => JSON.stringify(payload))}::text[]
    ) entry ("jobId", "kind", "key", "payload") where ${only}
    on conflict ("key") do nothing
    returning "id", "jobId", "kind", "key", "payload", "attempts"`
}

/** Takes entries that are due, of events or of all else, so that no other process tells them in the next moments. */
export async function takeDueOutbox(
  database: Database,
  {
    what,
    limit,
    of,
  }: { what: 'events' | 'all else'; limit: number; /** Of all jobs, or only of inline ones. */ of: 'all' | 'inline' },
): Promise<OutboxEntry[]> {
  if (limit <= 0) return []
  const ofJobs =
    of === 'all'
      ? sql`true`
      : sql`exists (select 1 from "offshoot"."AgentJob" j where j."id" = "Outbox"."jobId" and j."runner" = 'inline')`
  return database.$queryRaw<OutboxEntry[]>(sql`
    update "offshoot"."Outbox" set "nextAttemptAt" = clock_timestamp() + make_interval(secs => ${TAKER_HAS_MS / 1000})
    where "id" in (
      select "id" from "offshoot"."Outbox"
      where "doneAt" is null and "deadAt" is null and "nextAttemptAt" <= clock_timestamp()
        and ("kind" = 'completionEvent') = ${what === 'events'} and ${ofJobs}
      order by "id" limit ${limit} for update skip locked)
    returning "id", "jobId", "kind", "key", "payload", "attempts"`)
}

/**
 * Marks entries as told. For those that were told `late`, by somebody else than their writer, the history of their job
 * says so. Answers the lines.
 */
export async function markOutboxDone(
  { direct: database }: Pick<Database, 'direct'>,
  told: readonly { id: bigint; late: boolean }[],
): Promise<NewEvent[]> {
  const late = told.filter((entry) => entry.late).map((entry) => entry.id)
  const finding: JobFinding = 'outbox_due'
  const lines = await database.$queryRaw<{ jobId: string }[]>(sql`
    with done as (
      update "offshoot"."Outbox" set "doneAt" = clock_timestamp()
      where "id" = any(${told.map((entry) => entry.id)}::bigint[]) and "doneAt" is null
      returning "id", "jobId", "kind", "attempts")
    insert into "offshoot"."AgentEvent" ("jobId", "kind", "data")
    select "jobId", 'told-late', jsonb_build_object('kind', "kind", 'tries', "attempts" + 1, 'finding', ${finding}::text)
    from done where "id" = any(${late}::bigint[])
    returning "jobId"`)
  return lines.map(({ jobId }) => ({ jobId, kind: 'told-late', finding }))
}

/**
 * Notes a failure: try again after `delayMs`, or never again when it is `null`. Then the entry is a dead letter, and the
 * history of its job says so. Answers the line.
 */
export async function markOutboxFailed(
  database: Database,
  id: bigint,
  error: string,
  delayMs: number | null,
): Promise<NewEvent[]> {
  const lines = await database.$queryRaw<{ jobId: string }[]>(sql`
    with failed as (
      update "offshoot"."Outbox" set
        "attempts" = "attempts" + 1,
        "lastError" = ${storedText(headOf(error, 500))},
        "nextAttemptAt" = clock_timestamp() + make_interval(secs => ${(delayMs ?? 0) / 1000}),
        "deadAt" = case when ${delayMs === null} then clock_timestamp() end
      where "id" = ${id} and "doneAt" is null and "deadAt" is null
      returning "jobId", "kind", "attempts", "deadAt")
    insert into "offshoot"."AgentEvent" ("jobId", "kind", "data")
    select "jobId", 'dead-letter', jsonb_build_object('kind', "kind", 'tries', "attempts")
    from failed where "deadAt" is not null
    returning "jobId"`)
  return lines.map(({ jobId }) => ({ jobId, kind: 'dead-letter' }))
}

/** An entry that was given up, as an operator sees it. */
export interface DeadLetter {
  id: bigint
  jobId: string
  kind: OutboxKind
  key: string
  attempts: number
  lastError: string | null
  createdAt: Date
  deadAt: Date
}

/** The newest dead letters, below the id `before` when it is given. */
export async function listDeadLetters(database: Database, page: DeadLettersPage): Promise<DeadLetter[]> {
  return database.$queryRaw<DeadLetter[]>(deadLettersQuery(page))
}

interface DeadLettersPage {
  before?: bigint | undefined
  limit: number
}

/** Exported for the test that looks at its plan. */
export function deadLettersQuery({ before = MAX_ID, limit }: DeadLettersPage) {
  return sql`
    select "id", "jobId", "kind", "key", "attempts", "lastError", "createdAt", "deadAt" from "offshoot"."Outbox"
    where "deadAt" is not null and "doneAt" is null and "id" < ${before}
    order by "id" desc limit ${limit}`
}

const MAX_ID = 9_223_372_036_854_775_807n

/** Makes a dead letter an ordinary entry again, which its writer tells. Null: it is no dead letter (any more). */
export async function reviveDeadLetter(db: Queryable, id: bigint): Promise<OutboxEntry | null> {
  const rows = await db.$queryRaw<OutboxEntry[]>(sql`
    update "offshoot"."Outbox" set
      "deadAt" = null, "attempts" = 0,
      "nextAttemptAt" = clock_timestamp() + make_interval(secs => ${WRITER_HAS_MS / 1000})
    where "id" = ${id} and "deadAt" is not null and "doneAt" is null
    returning "id", "jobId", "kind", "key", "payload", "attempts"`)
  return rows[0] ?? null
}
