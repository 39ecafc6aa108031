// Statements on AgentJob that change where a job stands. Each has its guard in the `where`; no row changed means: not
// mine any more. Whoever changes more than this one row locks the tree first (operations/transact.ts).
import type { AgentJob } from './generated/client.ts'
import { Prisma } from './generated/client.ts'
import { sourcesOf, type TerminalState, type WaitingOn } from '../contracts/job-state.ts'
import type { Reason } from '../contracts/reason.ts'
import { type CutTokens, knownCount } from '../contracts/usage.ts'
import { headOf } from '../contracts/text.ts'
import { type Queryable, type Sql, sql } from './database.ts'
import type { Statements } from './direct-sql.ts'
import { encodeStoredJson, READABLE_FORMAT, storedText } from './stored-value.ts'

export type { AgentJob } from './generated/client.ts'

/** The right to write as one attempt of a job. */
export interface Claim {
  jobId: string
  token: string
}

/** A claim that is given up, with what the attempt's cut model calls have cost: it is counted in the same statement. */
export interface ReleasedClaim {
  token: string
  cutTokens?: CutTokens | undefined
}

/** A claim that is taken from a worker that was lost. */
export interface LostClaim {
  lostWorkerId: string
  /** The worker claimed the job when it was counted as lost already, and did not know: the job has not crashed it. */
  claimedAfterLoss?: true
}

export type ClaimedJob = AgentJob & {
  claimToken: string
  msLeft: number
  /** Whether anything was ever said to the job, read or not. */
  hasInbox: boolean
}

/** No model call of the job is under way any more (operations/budget.ts). */
const NOTHING_RESERVED = sql`"reservedTokens" = 0, "reservedCostMicroUsd" = 0`

/** An inline job that nobody holds stays its process's own: no other one can go on with it. */
const RELEASED = sql`"workerId" = case when "runner" = 'inline' then "workerId" end`

const states = (list: readonly string[]) => Prisma.join(list.map((state) => sql`${state}::"offshoot"."JobState"`))

export interface NewClaim extends Claim {
  deliverySeq: number
  workerId: string
}

/**
 * Claims a job for an attempt: only while it is pending, with exactly this delivery, before its deadline, with no abort
 * wish, and with a journal that this code can read. A claim that got no answer may be made again with its token. Null: the
 * delivery does not count any more, or the job is for newer workers.
 */
export async function claimJob(db: Statements, claim: NewClaim): Promise<ClaimedJob | null> {
  const [claimed = null] = await claimGroup(db, [claim], sql``)
  return claimed ?? findOwnClaim(db, claim)
}

/**
 * The same for many at once, in one statement. `apart`: claim this one alone; somebody holds its row, or it does not
 * count.
 */
export async function claimJobs(db: Statements, claims: readonly NewClaim[]): Promise<(ClaimedJob | 'apart')[]> {
  const claimed = await claimGroup(db, claims, sql`for update skip locked`)
  // Two deliveries of one job may be in one group: the token says whose claim it is.
  const byToken = new Map(claimed.map((job) => [job.claimToken, job]))
  return claims.map(({ token }) => byToken.get(token) ?? 'apart')
}

/** `lock`: how a row that somebody else holds is treated. */
async function claimGroup(db: Statements, claims: readonly NewClaim[], lock: Sql): Promise<ClaimedJob[]> {
  return db.$queryRaw<ClaimedJob[]>(sql`
    with claim as (
      select * from unnest(
        ${claims.map((claim) => claim.jobId)}::text[], ${claims.map((claim) => claim.token)}::text[],
        ${claims.map((claim) => claim.deliverySeq)}::int[], ${claims.map((claim) => claim.workerId)}::text[]
      ) claim ("jobId", "token", "deliverySeq", "workerId")
    ), free as (
      select "id" from "offshoot"."AgentJob" where "id" in (select "jobId" from claim) order by "id" ${lock}
    )
    update "offshoot"."AgentJob" job set
      "state" = 'running', "attempt" = "attempt" + 1, "claimToken" = claim."token", "workerId" = claim."workerId",
      "waitingOn" = null, "waitUntil" = null, "startedAt" = coalesce("startedAt", clock_timestamp())
    from claim, free
    where job."id" = claim."jobId" and job."id" = free."id" and "state" = 'pending' and job."deliverySeq" = claim."deliverySeq"
      and "deadlineAt" > clock_timestamp() and "abortRequestedAt" is null and "journalFormat" <= ${READABLE_FORMAT}
    returning job.*, ${MS_LEFT} as "msLeft",
      exists (select 1 from "offshoot"."InboxItem" item where item."jobId" = job."id") as "hasInbox"`)
}

const MS_LEFT = sql`(extract(epoch from "deadlineAt" - clock_timestamp()) * 1000)::float8`

async function findOwnClaim(db: Statements, claim: Claim): Promise<ClaimedJob | null> {
  const rows = await db.$queryRaw<ClaimedJob[]>(sql`
    select *, ${MS_LEFT} as "msLeft",
      exists (select 1 from "offshoot"."InboxItem" item where item."jobId" = "AgentJob"."id") as "hasInbox"
    from "offshoot"."AgentJob"
    where "id" = ${claim.jobId} and "claimToken" = ${claim.token} and "state" = 'running'`)
  return rows[0] ?? null
}

/** Whether this delivery counts, but for a worker that reads newer formats than this one. */
export async function isForNewerWorkers(db: Queryable, jobId: string, deliverySeq: number): Promise<boolean> {
  const count = await db.agentJob.count({
    where: { id: jobId, state: 'pending', deliverySeq, journalFormat: { gt: READABLE_FORMAT } },
  })
  return count > 0
}

/** Adds what cut model calls have cost, where a claim is given up that had some. */
function countCut(from: ReleasedClaim | LostClaim | 'wait' | 'unclaimed'): Sql {
  const cut = typeof from === 'object' && 'token' in from ? from.cutTokens : undefined
  if (cut === undefined) return Prisma.empty
  const knownCost = cut.costMicroUsd ?? null
  return sql`,
      "estimatedInputTokens" = coalesce("estimatedInputTokens", 0) + ${cut.inputTokens}::bigint,
      "estimatedOutputTokens" = coalesce("estimatedOutputTokens", 0) + ${cut.outputTokens}::bigint,
      "costMicroUsd" = ${knownCost === null ? sql`"costMicroUsd"` : sql`coalesce("costMicroUsd", 0) + ${knownCost}::bigint`}`
}

/**
 * Makes a running job pending again, with a new delivery number: handed back by its holder (`token`), taken from a lost
 * worker, or woken from a wait, unless somebody wants its end. Answers the row, or null when the guard did not hold.
 */
export async function makePending(
  db: Queryable,
  jobId: string,
  from: ReleasedClaim | LostClaim | 'wait',
): Promise<AgentJob | null> {
  const guard =
    from === 'wait'
      ? sql`"claimToken" is null and "waitingOn" is not null and "abortRequestedAt" is null`
      : 'token' in from
        ? sql`"claimToken" = ${from.token}`
        : sql`"workerId" = ${from.lostWorkerId} and "claimToken" is not null`
  const crashed = from !== 'wait' && 'lostWorkerId' in from && from.claimedAfterLoss !== true ? 1 : 0
  const rows = await db.$queryRaw<AgentJob[]>(sql`
    update "offshoot"."AgentJob" set ${PENDING_AGAIN}, "crashes" = "crashes" + ${crashed}
      ${countCut(from)}
    where "id" = ${jobId} and "state" = 'running' and ${guard}
    returning *`)
  return rows[0] ?? null
}

const PENDING_AGAIN = sql`
  "state" = 'pending', "claimToken" = null, ${RELEASED}, "waitingOn" = null, "waitUntil" = null,
  "deliverySeq" = "deliverySeq" + 1, "deliveredAt" = clock_timestamp(), ${NOTHING_RESERVED}`

/**
 * Makes all jobs of a lost worker in these trees pending again that nobody wants to end, and that fewer than
 * `maxCrashes` workers were lost with by then. Answers their rows.
 */
export async function makeLostPending(
  db: Queryable,
  lost: { workerId: string; rootJobIds: readonly string[]; maxCrashes: number },
): Promise<AgentJob[]> {
  return db.$queryRaw<AgentJob[]>(sql`
    update "offshoot"."AgentJob" set ${PENDING_AGAIN}, "crashes" = "crashes" + 1
    where "workerId" = ${lost.workerId} and "claimToken" is not null and "state" = 'running'
      and "runner" = 'queue' and "rootJobId" = any(${[...lost.rootJobIds]}::text[])
      and "abortRequestedAt" is null and "crashes" + 1 < ${lost.maxCrashes}
    returning *`)
}

/**
 * Gives up the claim and stores what the job waits for; another try of a step may be counted. False: the claim was
 * lost, or there is an abort wish.
 */
export async function storeWaitingJob(
  db: Queryable,
  claim: Claim & ReleasedClaim,
  wait: { on: WaitingOn; forMs: number | null; countsAsRetry?: boolean },
): Promise<boolean> {
  const until =
    wait.forMs === null
      ? sql`null`
      : sql`least("deadlineAt", clock_timestamp() + make_interval(secs => ${wait.forMs / 1000}))`
  const changed = await db.$executeRaw(sql`
    update "offshoot"."AgentJob" set
      "waitingOn" = ${wait.on}::"offshoot"."WaitingOn", "waitUntil" = ${until}, "claimToken" = null, ${RELEASED},
      "stepRetries" = "stepRetries" + ${wait.countsAsRetry === true ? 1 : 0}, ${NOTHING_RESERVED}
      ${countCut(claim)}
    where "id" = ${claim.jobId} and "claimToken" = ${claim.token} and "state" = 'running' and "abortRequestedAt" is null`)
  return changed === 1
}

/**
 * Gives up the claim of a job that is about to end, so that it waits for its inbox: for `parkTimeoutMs` from its first
 * park on. False: the time is over, the claim was lost, or there is an abort wish.
 */
export async function parkJob(db: Queryable, claim: Claim & ReleasedClaim, parkTimeoutMs: number): Promise<boolean> {
  const until = sql`coalesce("parkUntil", least("deadlineAt", clock_timestamp() + make_interval(secs => ${parkTimeoutMs / 1000})))`
  const changed = await db.$executeRaw(sql`
    update "offshoot"."AgentJob" set
      "waitingOn" = 'inbox', "waitUntil" = ${until}, "parkUntil" = ${until}, "parks" = "parks" + 1,
      "claimToken" = null, ${RELEASED}, ${NOTHING_RESERVED}
      ${countCut(claim)}
    where "id" = ${claim.jobId} and "claimToken" = ${claim.token} and "state" = 'running' and "abortRequestedAt" is null
      and ${until} > clock_timestamp()`)
  return changed === 1
}

/** A job's deadline, inside a statement; null, which `least` passes over, for no job. */
export function deadlineOf(jobId: string | null | Sql): Sql {
  return jobId === null
    ? sql`null`
    : sql`(select other."deadlineAt" from "offshoot"."AgentJob" other where other."id" = ${jobId})`
}

/** A job's row, for those who ask often. */
export async function findJob(db: Statements, jobId: string): Promise<AgentJob | null> {
  const rows = await db.$queryRaw<AgentJob[]>(sql`select * from "offshoot"."AgentJob" where "id" = ${jobId}`)
  return rows[0] ?? null
}

/** Milliseconds until a job's deadline by Postgres's clock; at least 1, so that what gets them still has a limit. */
export async function readDeadlineMsLeft(db: Queryable, jobId: string): Promise<number> {
  const rows = await db.$queryRaw<{ msLeft: number }[]>(sql`
    select (extract(epoch from "deadlineAt" - clock_timestamp()) * 1000)::float8 as "msLeft"
    from "offshoot"."AgentJob" where "id" = ${jobId}`)
  return Math.max(1, rows[0]?.msLeft ?? 1)
}

/** Characters of the sentence that is kept of an error; `errorDetail` has more. */
const MAX_ERROR_LENGTH = 2_000

/** What ends a job. */
export interface Ending {
  state: TerminalState
  reason: Reason
  result: string | null
  /** A short sentence that users may read. */
  error?: string
  /** What operators may read: cause code, provider status. */
  errorDetail?: unknown
  partial: boolean
}

/** Who may end the job: the holder of its claim, or anybody while no worker holds it. */
export type EndingGuard = ReleasedClaim | 'unclaimed'

/**
 * Writes the terminal state, once. A job that ends keeps the token of the attempt that ended it, so that an attempt
 * whose commit got no answer can see that it was its own.
 */
export async function endJob(
  db: Queryable,
  jobId: string,
  guard: EndingGuard,
  ending: Ending,
): Promise<AgentJob | null> {
  const held = guard === 'unclaimed' ? sql`"claimToken" is null` : sql`"claimToken" = ${guard.token}`
  const rows = await db.$queryRaw<AgentJob[]>(sql`
    update "offshoot"."AgentJob" set
      "state" = ${ending.state}::"offshoot"."JobState", "reason" = ${ending.reason},
      "result" = ${ending.result === null ? null : storedText(ending.result)},
      "error" = ${ending.error === undefined ? null : storedText(headOf(ending.error, MAX_ERROR_LENGTH))},
      "errorDetail" = ${ending.errorDetail === undefined ? null : encodeStoredJson(ending.errorDetail)}::jsonb,
      "partial" = ${ending.partial}, ${NOTHING_RESERVED}, "waitingOn" = null, "waitUntil" = null, "finishedAt" = clock_timestamp()
      ${countCut(guard)}
    where "id" = ${jobId} and "state" in (${states(sourcesOf(ending.state))}) and ${held}
    returning *`)
  return rows[0] ?? null
}

/** Stores an abort wish on those of the jobs that are live and have none. Answers the rows that it changed. */
export async function storeAbortWish(
  db: Queryable,
  jobIds: readonly string[],
  wish: { by: string | null; reason: Reason; text: string | null },
): Promise<AgentJob[]> {
  if (jobIds.length === 0) return []
  return db.$queryRaw<AgentJob[]>(sql`
    update "offshoot"."AgentJob" set
      "abortRequestedAt" = clock_timestamp(), "abortRequestedBy" = ${wish.by === null ? null : storedText(wish.by)}, "abortReason" = ${wish.reason},
      "abortText" = ${wish.text === null ? null : storedText(wish.text)}
    where "id" = any(${[...jobIds]}::text[]) and "state" in ('pending', 'running') and "abortRequestedAt" is null
    returning *`)
}

/** The live jobs below a job, whatever their depth. */
export async function findLiveDescendants(db: Queryable, jobId: string): Promise<AgentJob[]> {
  return db.agentJob.findMany({
    where: { ancestorIds: { has: jobId }, state: { in: ['pending', 'running'] } },
    orderBy: { depth: 'desc' },
  })
}

/** How many sync children of that step of a job are still live. */
export async function countLiveSyncChildren(db: Queryable, jobId: string, step: number): Promise<number> {
  return db.agentJob.count({
    where: { parentJobId: jobId, parentStep: step, mode: 'sync', state: { in: ['pending', 'running'] } },
  })
}

/** How many async children of a job are live that will put their outcome into its inbox. */
export async function countChildrenToHearOf(db: Queryable, jobId: string): Promise<number> {
  return db.agentJob.count({
    where: { parentJobId: jobId, mode: 'async', notifyParent: true, state: { in: ['pending', 'running'] } },
  })
}

/** A 64-bit counter as JSON takes it: exact, or null beyond 2^53 - 1. The one way of a counter out of the record. */
export function toCount(value: bigint | null): number | null {
  return value === null ? null : knownCount(Number(value))
}
