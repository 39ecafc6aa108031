import type { JobFinding } from '../contracts/finding.ts'
import { Prisma } from './generated/client.ts'
import type { Claim } from './agent-jobs.ts'
import { type Queryable, type Sql, sql } from './database.ts'
import { encodeStoredJson, storedText } from './stored-value.ts'

/** What can be read in a job's history. */
export type EventKind =
  | 'spawned'
  | 'waiting'
  | 'woken'
  | 'handed-back'
  | 'worker-lost'
  | 'redelivered'
  | 'told-late'
  | 'dead-letter'
  | 'resent'
  | 'abort-requested'
  | 'steered'
  | 'ended'
  | 'refused'
  | 'retried'
  | 'repeated-calls'
  | 'late-result'
  | 'mcp-server'
  | 'layer-failed'

export interface NewEvent {
  jobId: string
  kind: EventKind
  /** Who did it: a user id, or absent when Offshoot itself did. */
  actorId?: string
  /** Set where the reconciler found what it put right with this: it stands among the data. */
  finding?: JobFinding
  data?: Record<string, unknown>
}

/**
 * Adds a line, unless the job's history has one of this kind already whose data hold `same`. With a claim, only while its
 * attempt holds the job.
 */
export async function insertEventOnce(
  db: Queryable,
  { jobId, kind, data }: NewEvent,
  { same = {}, claim }: { same?: Record<string, unknown>; claim?: Claim } = {},
): Promise<void> {
  const held = claim === undefined ? sql`true` : sql`"claimToken" = ${claim.token} and "state" = 'running'`
  await db.$executeRaw(sql`
    insert into "offshoot"."AgentEvent" ("jobId", "kind", "data")
    select "id", ${kind}, ${encodeStoredJson(data ?? {})}::jsonb from "offshoot"."AgentJob" job
    where "id" = ${jobId} and ${held} and not exists (
      select 1 from "offshoot"."AgentEvent" known
      where known."jobId" = job."id" and known."kind" = ${kind} and known."data" @> ${encodeStoredJson(same)}::jsonb)`)
}

/** A statement, also for use in a `with`. `only`: a condition on "jobId". */
export function eventsInsert(lines: readonly NewEvent[], only: Sql = sql`true`): Sql {
  const stored = lines.map(({ finding, data }) =>
    encodeStoredJson({ ...data, ...(finding === undefined ? {} : { finding }) }),
  )
  return sql`
    insert into "offshoot"."AgentEvent" ("jobId", "kind", "actorId", "data")
    select "jobId", "kind", "actorId", "data"::jsonb from unnest(
      ${lines.map(({ jobId }) => jobId)}::text[], ${lines.map(({ kind }) => kind)}::text[],
      ${lines.map(({ actorId }) => (actorId === undefined ? null : storedText(actorId)))}::text[], ${stored}::text[]
    ) line ("jobId", "kind", "actorId", "data") where ${only}`
}

/** Adds lines from an attempt, while it holds the job. */
export async function insertEventsOfAttempt(
  db: Queryable,
  claim: Claim,
  events: readonly Pick<NewEvent, 'kind' | 'data'>[],
): Promise<void> {
  if (events.length === 0) return
  const rows = events.map((event) => sql`(${event.kind}, ${encodeStoredJson(event.data ?? {})}::jsonb)`)
  await db.$executeRaw(sql`
    insert into "offshoot"."AgentEvent" ("jobId", "kind", "data")
    select job."id", event.* from "offshoot"."AgentJob" job, (values ${Prisma.join(rows)}) event
    where job."id" = ${claim.jobId} and job."claimToken" = ${claim.token} and job."state" = 'running'`)
}
