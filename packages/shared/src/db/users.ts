import { createHash, randomBytes } from 'node:crypto'
import type { AgentJob } from './agent-jobs.ts'
import type { ApiKeyKind } from './generated/client.ts'
import { type Database, type Queryable, sql } from './database.ts'

/** Makes the user's row if there is none yet, never as admin. */
export async function ensureUser(db: Queryable, userId: string): Promise<void> {
  await db.$executeRaw(sql`insert into "offshoot"."User" ("id") values (${userId}) on conflict do nothing`)
}

export async function isAdmin(db: Queryable, userId: string): Promise<boolean> {
  const user = await db.user.findUnique({ where: { id: userId }, select: { admin: true } })
  return user?.admin === true
}

/** Whether the table lets `userId` spawn as `delegateUserId`. */
export async function mayDelegate(db: Queryable, userId: string, delegateUserId: string): Promise<boolean> {
  const row = await db.userDelegate.findUnique({ where: { userId_delegateUserId: { userId, delegateUserId } } })
  return row !== null
}

/**
 * Whether the rights on which a job runs as its owner still stand: its own and those of the jobs above it, where they are
 * of the table or an admin's. What a host has said with a spawn stands.
 */
export async function rightsStand(
  db: Queryable,
  job: Pick<AgentJob, 'id' | 'ancestorIds' | 'grant'>,
): Promise<boolean> {
  // A job that runs as its parent's owner has the grant `self` only where its parent has.
  if (job.grant === 'self') return true
  const withdrawn = await db.$queryRaw<unknown[]>(sql`
    select 1 from "offshoot"."AgentJob" job where job."id" = any(${[job.id, ...job.ancestorIds]}::text[]) and (
      (job."grant" = 'delegate' and not exists (
        select 1 from "offshoot"."UserDelegate" may
        where may."userId" = job."triggeredById" and may."delegateUserId" = job."ownerId"))
      or (job."grant" = 'admin' and not exists (
        select 1 from "offshoot"."User" who where who."id" = job."triggeredById" and who."admin")))
    limit 1`)
  return withdrawn.length === 0
}

export interface ApiKeyOwner {
  userId: string
  kind: ApiKeyKind
  admin: boolean
}

export function hashApiKey(key: string): string {
  return createHash('sha256').update(key).digest('hex')
}

/** Makes a key for a user. The key is returned once and not stored. */
export async function createApiKey(database: Database, userId: string, kind: ApiKeyKind = 'user'): Promise<string> {
  const key = `offshoot_${randomBytes(24).toString('base64url')}`
  await database.apiKey.create({ data: { hash: hashApiKey(key), userId, kind } })
  return key
}

/** Whose key it is, or undefined for an unknown or revoked one. Notes the use, at most once a minute. */
export async function findApiKey(database: Database, key: string): Promise<ApiKeyOwner | undefined> {
  const hash = hashApiKey(key)
  const rows = await database.$queryRaw<(ApiKeyOwner & { stale: boolean })[]>(sql`
    select k."userId", k."kind", coalesce(u."admin", false) as "admin",
      k."lastUsedAt" is null or k."lastUsedAt" < clock_timestamp() - interval '1 minute' as "stale"
    from "offshoot"."ApiKey" k left join "offshoot"."User" u on u."id" = k."userId"
    where k."hash" = ${hash} and k."revokedAt" is null`)
  const found = rows[0]
  if (found === undefined) return undefined
  if (found.stale)
    await database.$executeRaw(
      sql`update "offshoot"."ApiKey" set "lastUsedAt" = clock_timestamp() where "hash" = ${hash}`,
    )
  return { userId: found.userId, kind: found.kind, admin: found.admin }
}
