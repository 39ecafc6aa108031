// Retention: what has ended long ago goes, tree by tree, so that a job never misses its parent. Convos and their messages
// are the product's data and stay.
import { Prisma } from '../db/generated/client.ts'
import { type Database, sql } from '../db/database.ts'
import { lockFreeTrees, transact, type TransactRuntime } from './transact.ts'

/** Trees of one round, so that a round stays short. */
export const TREES_A_ROUND = 50
/** The same for outbox entries, which go in one statement. */
export const ENTRIES_A_ROUND = 5_000
/** Told outbox entries are only kept to look into what happened. */
const TOLD_ENTRIES_DAYS = 1
const JOB_TABLES = [
  'AgentStep',
  'AgentToolCall',
  'Blob',
  'AgentEvent',
  'InboxItem',
  'Outbox',
  'LayerState',
  'LayerPastState',
]

/** Removes trees that ended more than `retentionDays` ago, with their journals and histories. Answers how many. */
export async function removeOldTrees(runtime: TransactRuntime, retentionDays: number): Promise<number> {
  const roots = await runtime.database.$queryRaw<{ id: string }[]>(sql`
    select j."id" from "offshoot"."AgentJob" j
    where j."id" = j."rootJobId" and j."finishedAt" < clock_timestamp() - make_interval(days => ${retentionDays})
      and not exists (
        select 1 from "offshoot"."AgentJob" d
        where d."rootJobId" = j."id"
          and (d."finishedAt" is null or d."finishedAt" >= clock_timestamp() - make_interval(days => ${retentionDays})))
    order by j."finishedAt" limit ${TREES_A_ROUND}`)
  let removed = 0
  for (const { id: rootJobId } of roots) if (await removeTree(runtime, rootJobId)) removed += 1
  runtime.metrics.countFindings('removed_by_retention', removed)
  return removed
}

/** False: it is not to be removed after all, or somebody holds it now. */
async function removeTree(runtime: TransactRuntime, rootJobId: string): Promise<boolean> {
  return transact(runtime, async (tx) => {
    if ((await lockFreeTrees(tx, [rootJobId])).length === 0) return false
    // A retry may have revived a job since.
    const live = await tx.db.agentJob.count({ where: { rootJobId, state: { in: ['pending', 'running'] } } })
    if (live > 0) return false
    for (const table of JOB_TABLES) {
      const name = Prisma.raw(`"offshoot"."${table}"`)
      await tx.db.$executeRaw(
        sql`delete from ${name} where "jobId" in (select "id" from "offshoot"."AgentJob" where "rootJobId" = ${rootJobId})`,
      )
    }
    await tx.db.agentJob.deleteMany({ where: { rootJobId } })
    await tx.db.agentTree.deleteMany({ where: { rootJobId } })
    return true
  })
}

/** Removes entries that were told long ago. Answers how many. */
export async function removeToldEntries(database: Database): Promise<number> {
  return database.$executeRaw(sql`
    delete from "offshoot"."Outbox" where "id" in (
      select "id" from "offshoot"."Outbox"
      where "doneAt" < clock_timestamp() - make_interval(days => ${TOLD_ENTRIES_DAYS}) limit ${ENTRIES_A_ROUND})`)
}
