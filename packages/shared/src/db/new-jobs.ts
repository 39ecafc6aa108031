// The rows that a spawn makes, those of many spawns in one statement: the tree of a root, the convo with its first message,
// and the job.
import { deadlineOf } from './agent-jobs.ts'
import { newId } from '../ids.ts'
import { type Sql, sql } from './database.ts'
import type { Statements } from './direct-sql.ts'
import { type AgentJob, Prisma } from './generated/client.ts'
import { encodeStored, STORED_FORMAT } from './stored-value.ts'

/** What a spawn says of its job; all else is as the table has it for new rows. */
const COLUMNS = [
  ...(['id', 'botId', 'botLabel', 'botRef', 'botSnapshot', 'ownerId', 'triggeredById', 'triggeredByIds'] as const),
  ...([
    'grant',
    'delegateUserIds',
    'convoId',
    'parentConvoId',
    'parentJobId',
    'parentStep',
    'parentToolCallId',
  ] as const),
  ...(['rootJobId', 'ancestorIds', 'depth', 'tags', 'mode', 'inputMessage', 'inputSeq', 'overrides'] as const),
  ...([
    'toolNames',
    'maxSteps',
    'layers',
    'steers',
    'notifyParent',
    'wakeIdleParent',
    'onParentEnd',
    'runner',
  ] as const),
  ...(['workerId', 'lane', 'priority', 'timeoutMs', 'parkTimeoutMs', 'maxTotalTokens', 'maxCostMicroUsd'] as const),
  ...([
    'budgeted',
    'completionEventName',
    'completionEventData',
    'idempotencyKey',
    'requestHash',
    'traceparent',
  ] as const),
] satisfies (keyof AgentJob)[]

type JsonColumn = 'botRef' | 'botSnapshot' | 'tags' | 'overrides' | 'completionEventData'
export type NewJob = Omit<Pick<AgentJob, (typeof COLUMNS)[number]>, JsonColumn> & Record<JsonColumn, unknown>

export interface NewSpawn {
  job: NewJob
  /** Of its convo. */
  spaceId: string | null
}

const columns = Prisma.raw(COLUMNS.map((name) => `"${name}"`).join(', '))

/** Inserts the jobs and answers their rows, in the order of `spawns`. */
export async function insertSpawns(db: Statements, spawns: readonly NewSpawn[]): Promise<AgentJob[]> {
  const rows = await db.$queryRaw<AgentJob[]>(sql`with ${spawnInserts(spawns)} select * from job`)
  const byId = new Map(rows.map((row) => [row.id, row]))
  return spawns.flatMap(({ job }) => byId.get(job.id) ?? [])
}

/**
 * The parts of a `with` that insert the jobs, each in a convo of its own that begins with its message, and count them in
 * their trees; a root brings its tree. Their time begins now, by Postgres's clock, and ends no later than a parent's. The
 * last part is `job`, their rows.
 */
export function spawnInserts(spawns: readonly NewSpawn[]): Sql {
  const jobs = spawns.map(({ job }) => job)
  const parts = jobs.map((job) => JSON.stringify(encodeStored([{ type: 'text', text: job.inputMessage }])))
  return sql`
    tree as (
      insert into "offshoot"."AgentTree" ("rootJobId", "jobs")
      select "rootJobId", count(*) from unnest(${jobs.map((job) => job.rootJobId)}::text[]) job ("rootJobId") group by 1
      on conflict ("rootJobId") do update set "jobs" = "AgentTree"."jobs" + excluded."jobs"
    ), convo as (
      insert into "offshoot"."Convo" ("id", "botId", "botLabel", "ownerId", "spaceId")
      select * from unnest(
        ${jobs.map((job) => job.convoId)}::text[], ${jobs.map((job) => job.botId)}::text[], ${jobs.map((job) => job.botLabel)}::text[],
        ${jobs.map((job) => job.ownerId)}::text[], ${spawns.map(({ spaceId }) => spaceId)}::text[])
    ), message as (
      insert into "offshoot"."AiMessage" ("id", "convoId", "ownerId", "seq", "role", "parts")
      select "id", "convoId", "ownerId", "seq", 'user', "parts"::json from unnest(
        ${jobs.map(() => newId())}::text[], ${jobs.map((job) => job.convoId)}::text[], ${jobs.map((job) => job.ownerId)}::text[],
        ${jobs.map((job) => job.inputSeq)}::int[], ${parts}::text[]
      ) message ("id", "convoId", "ownerId", "seq", "parts")
    ), job as (
      insert into "offshoot"."AgentJob" (${columns}, "journalFormat", "deadlineAt")
      select ${columns}, ${STORED_FORMAT}::int,
        least(clock_timestamp() + make_interval(secs => "timeoutMs" / 1000.0), ${deadlineOf(sql`new."parentJobId"`)})
      from json_populate_recordset(null::"offshoot"."AgentJob", ${JSON.stringify(jobs, bigintAsText)}::json) new
      returning *
    )`
}

function bigintAsText(_key: string, value: unknown): unknown {
  return typeof value === 'bigint' ? value.toString() : value
}
