// What a budget has left. A job's own counters are the only record of what was spent: a subtree's spend is their sum, so
// nothing can be charged twice or forgotten. Read and reserve under the tree's lock (operations/budget.ts).
import type { Claim } from './agent-jobs.ts'
import { type Queryable, sql } from './database.ts'
import { readSubtreeCounters } from './subtree-counters.ts'

/** Tokens, and micro-dollars where they are known. */
export interface Spend {
  tokens: bigint
  costMicroUsd: bigint
}

/** One job's budget, with what its subtree has spent and what calls under way may still spend. `null`: no such limit. */
export interface BudgetStand {
  jobId: string
  maxTotalTokens: bigint | null
  maxCostMicroUsd: bigint | null
  spent: Spend
  reserved: Spend
}

/** The budgets of these jobs, those that have one. What `exceptJobId` has reserved itself does not count. */
export async function readBudgets(
  db: Queryable,
  jobIds: readonly string[],
  exceptJobId: string | null,
): Promise<BudgetStand[]> {
  const rows = await db.$queryRaw<
    {
      id: string
      maxTotalTokens: bigint | null
      maxCostMicroUsd: bigint | null
      spentTokens: bigint
      spentCost: bigint
      reservedTokens: bigint
      reservedCost: bigint
    }[]
  >(sql`
    select b."id", b."maxTotalTokens", b."maxCostMicroUsd", s.* from "offshoot"."AgentJob" b
    cross join lateral (
      select
        coalesce(sum(coalesce(d."totalTokens", 0) + coalesce(d."estimatedInputTokens", 0) + coalesce(d."estimatedOutputTokens", 0)), 0)::bigint
          as "spentTokens",
        coalesce(sum(d."costMicroUsd"), 0)::bigint as "spentCost",
        coalesce(sum(d."reservedTokens") filter (where d."id" is distinct from ${exceptJobId}), 0)::bigint as "reservedTokens",
        coalesce(sum(d."reservedCostMicroUsd") filter (where d."id" is distinct from ${exceptJobId}), 0)::bigint as "reservedCost"
      from "offshoot"."AgentJob" d
      where d."rootJobId" = b."rootJobId" and (d."id" = b."id" or b."id" = any(d."ancestorIds"))
    ) s
    where b."id" = any(${[...jobIds]}::text[]) and (b."maxTotalTokens" is not null or b."maxCostMicroUsd" is not null)`)
  return rows.map((row) => ({
    jobId: row.id,
    maxTotalTokens: row.maxTotalTokens,
    maxCostMicroUsd: row.maxCostMicroUsd,
    spent: { tokens: row.spentTokens, costMicroUsd: row.spentCost },
    reserved: { tokens: row.reservedTokens, costMicroUsd: row.reservedCost },
  }))
}

/** What a job's subtree has spent. */
export async function readSpend(db: Queryable, jobId: string): Promise<Spend> {
  const counters = (await readSubtreeCounters(db, [jobId])).get(jobId)
  return {
    tokens:
      (counters?.totalTokens ?? 0n) + (counters?.estimatedInputTokens ?? 0n) + (counters?.estimatedOutputTokens ?? 0n),
    costMicroUsd: counters?.costMicroUsd ?? 0n,
  }
}

/** Notes what the model call that is about to start may spend; its settling and every end of the attempt clear it. */
export async function storeReservation(db: Queryable, claim: Claim, spend: Spend): Promise<boolean> {
  const changed = await db.$executeRaw(sql`
    update "offshoot"."AgentJob" set "reservedTokens" = ${spend.tokens}, "reservedCostMicroUsd" = ${spend.costMicroUsd}
    where "id" = ${claim.jobId} and "claimToken" = ${claim.token} and "state" = 'running'`)
  return changed === 1
}
