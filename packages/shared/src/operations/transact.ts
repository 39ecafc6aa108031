// A transaction that collects what must follow from it: outbox entries and history go into the same commit, and what
// they tell leaves the process right after it. Nobody opens a transaction in another way but the group commits
// (`lockThenWrite` of db/direct-sql.ts), whose locks are made here, too, so that the lock order of docs/decisions/0004
// (tree, job rows, convo, user; layer states last, 0025) can be followed from here: `lockTree`, `freeTreesLock`,
// `lockConvo`, `usersLock`.
import { type Queryable, type Sql, sql } from '../db/database.ts'
import { isLockTimeout, isTransientDatabaseError } from '../db/database-errors.ts'
import type { Statements } from '../db/direct-sql.ts'
import { eventsInsert, type NewEvent } from '../db/events.ts'
import { type NewOutboxEntry, type OutboxEntry, outboxInsert } from '../db/outbox.ts'
import type { Runtime } from '../runtime.ts'

export interface Tx {
  db: Queryable
  /** Tells others after the commit, at least once. */
  tell(entry: NewOutboxEntry): void
  /** Adds a line to a job's history. */
  record(event: NewEvent): void
  /** Makes the workers that run these jobs look at them at once; they would see it at their next heartbeat anyway. */
  nudgeWorkers(jobIds: readonly string[]): void
  /** The same for the children of a scope whose layer state was written. */
  nudgeLayers(scopeKey: string): void
}

export type TransactRuntime = Pick<Runtime, 'database' | 'outbox' | 'signals' | 'metrics'> & {
  /** How long a transaction waits for a lock, if less than its session would, and only once: who asks comes again by itself. */
  lockLimitMs?: number
}

const MAX_TRIES = 4

/**
 * Runs `work` in one transaction; tries again, on a new one, when Postgres says that it may succeed then. `work` must
 * therefore be repeatable: it may only change things through `tx`.
 */
export async function transact<T>(runtime: TransactRuntime, work: (tx: Tx) => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await transactOnce(runtime, work)
    } catch (error) {
      if (tries >= MAX_TRIES || !isTransientDatabaseError(error)) throw error
      if (runtime.lockLimitMs !== undefined && isLockTimeout(error)) throw error
      await new Promise((resolve) => setTimeout(resolve, 20 * 4 ** tries * (0.5 + Math.random())))
    }
  }
}

async function transactOnce<T>(runtime: TransactRuntime, work: (tx: Tx) => Promise<T>): Promise<T> {
  const entries: NewOutboxEntry[] = []
  const events: NewEvent[] = []
  const nudged: string[] = []
  const nudgedScopes = new Set<string>()
  const { lockLimitMs } = runtime
  const { value, told } = await runtime.database.$transaction(async (db) => {
    if (lockLimitMs !== undefined)
      await db.$queryRaw(sql`select set_config('lock_timeout', ${String(lockLimitMs)}, true)`)
    const result = await work({
      db,
      tell: (entry) => void entries.push(entry),
      record: (event) => void events.push(event),
      nudgeWorkers: (jobIds) => void nudged.push(...jobIds),
      nudgeLayers: (scopeKey) => void nudgedScopes.add(scopeKey),
    })
    return { value: result, told: await insertFollowing(db, events, entries) }
  })
  runtime.metrics.countEvents(events)
  runtime.outbox.dispatch(told)
  if (nudged.length > 0) runtime.signals.publish('workers', JSON.stringify(nudged))
  if (nudgedScopes.size > 0) runtime.signals.publish('layers', JSON.stringify([...nudgedScopes]))
  return value
}

async function insertFollowing(
  db: Statements,
  events: readonly NewEvent[],
  entries: readonly NewOutboxEntry[],
): Promise<OutboxEntry[]> {
  if (events.length === 0 && entries.length === 0) return []
  return db.$queryRaw<OutboxEntry[]>(sql`with history as (${eventsInsert(events)}) ${outboxInsert(entries)}`)
}

/** Locks a tree: the first lock of whoever changes or decides from more than one job. Look only in later statements. */
export async function lockTree(tx: Tx, rootJobId: string): Promise<void> {
  await tx.db.$executeRaw(sql`select 1 from "offshoot"."AgentTree" where "rootJobId" = ${rootJobId} for update`)
}

/** Locks those of the trees that nobody holds now, and answers which. It never waits, so several are no danger. */
export async function lockFreeTrees(tx: Tx, rootJobIds: readonly string[]): Promise<string[]> {
  const rows = await tx.db.$queryRaw<LockedTree[]>(freeTreesLock(rootJobIds))
  return rows.map(({ rootJobId }) => rootJobId)
}

export interface LockedTree {
  rootJobId: string
}

/** The statement alone. Its rows are `LockedTree`. */
export function freeTreesLock(rootJobIds: readonly string[]): Sql {
  return sql`
    select "rootJobId" from "offshoot"."AgentTree" where "rootJobId" = any(${[...rootJobIds]}::text[])
    for update skip locked`
}

export async function lockConvo(tx: Tx, convoId: string): Promise<void> {
  await tx.db.$executeRaw(sql`select 1 from "offshoot"."Convo" where "id" = ${convoId} for update`)
}

/** Makes the user's row if this is the first use, locks it, and answers how many unfinished jobs the user has. */
export async function lockUser(tx: Tx, userId: string): Promise<number> {
  const rows = await tx.db.$queryRaw<LockedUser[]>(usersLock([userId], { onlyFree: false }))
  return rows[0]?.activeJobs ?? 0
}

export interface LockedUser {
  userId: string
  activeJobs: number
}

/** The same for several, as a statement. Its rows are `LockedUser`; `onlyFree`: of those that nobody holds now. */
export function usersLock(userIds: readonly string[], { onlyFree }: { onlyFree: boolean }): Sql {
  return sql`select * from "offshoot"."lock_users"(${[...new Set(userIds)]}::text[], ${onlyFree}::boolean)`
}
