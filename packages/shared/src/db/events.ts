import { Prisma } from './generated/client.ts'
import { type Queryable, sql } from './database.ts'
import { encodeStoredJson } from './stored-value.ts'

/** What can be read in a job's history. */
export type EventKind =
  | 'spawned'
  | 'waiting'
  | 'woken'
  | 'handed-back'
  | 'worker-lost'
  | 'redelivered'
  | 'abort-requested'
  | 'steered'
  | 'ended'
  | 'refused'
  | 'retried'

export interface NewEvent {
  jobId: string
  kind: EventKind
  /** Who did it: a user id, or absent when Offshoot itself did. */
  actorId?: string
  data?: Record<string, unknown>
}

export async function insertEvents(db: Queryable, events: readonly NewEvent[]): Promise<void> {
  if (events.length === 0) return
  const rows = events.map(
    (event) =>
      sql`(${event.jobId}, ${event.kind}, ${event.actorId ?? null}, ${encodeStoredJson(event.data ?? {})}::jsonb)`,
  )
  await db.$executeRaw(
    sql`insert into "offshoot"."AgentEvent" ("jobId", "kind", "actorId", "data") values ${Prisma.join(rows)}`,
  )
}
