// What a subtree has used: the sum of its jobs' own counters, which are the only record of it (docs/decisions/0023).
import type { AgentJob } from './agent-jobs.ts'
import { type Queryable, sql } from './database.ts'

/** What the model calls of a job have used; null is unknown. */
export type JobCounters = Pick<
  AgentJob,
  | 'inputTokens'
  | 'outputTokens'
  | 'reasoningTokens'
  | 'totalTokens'
  | 'estimatedInputTokens'
  | 'estimatedOutputTokens'
  | 'costMicroUsd'
>

/** The sums of a job's counters and those of all its descendants. A sum is unknown only where every summand is. */
export type SubtreeCounters = JobCounters & { jobs: number }

/**
 * The sums for each of these jobs that is there, in one statement. It reads the rows of their trees, each once, by the
 * tree's index: at most MAX_JOBS_PER_TREE a tree.
 */
export async function readSubtreeCounters(
  db: Queryable,
  jobIds: readonly string[],
): Promise<Map<string, SubtreeCounters>> {
  const ids = sql`${[...jobIds]}::text[]`
  // As text: a sum of 64-bit counters may need more than 64 bits.
  const rows = await db.$queryRaw<({ id: string; jobs: number } & Record<keyof JobCounters, string | null>)[]>(sql`
    select "top"."id", count(*)::int as "jobs",
      sum(job."inputTokens")::text as "inputTokens", sum(job."outputTokens")::text as "outputTokens",
      sum(job."reasoningTokens")::text as "reasoningTokens", sum(job."totalTokens")::text as "totalTokens",
      sum(job."estimatedInputTokens")::text as "estimatedInputTokens",
      sum(job."estimatedOutputTokens")::text as "estimatedOutputTokens", sum(job."costMicroUsd")::text as "costMicroUsd"
    from "offshoot"."AgentJob" job
    cross join lateral unnest(array_append(job."ancestorIds", job."id")) as "top"("id")
    where job."rootJobId" = any(array(select "rootJobId" from "offshoot"."AgentJob" where "id" = any(${ids})))
      and "top"."id" = any(${ids})
    group by "top"."id"`)
  return new Map(
    rows.map(({ id, jobs, ...sums }) => [
      id,
      {
        jobs,
        inputTokens: toSum(sums.inputTokens),
        outputTokens: toSum(sums.outputTokens),
        reasoningTokens: toSum(sums.reasoningTokens),
        totalTokens: toSum(sums.totalTokens),
        estimatedInputTokens: toSum(sums.estimatedInputTokens),
        estimatedOutputTokens: toSum(sums.estimatedOutputTokens),
        costMicroUsd: toSum(sums.costMicroUsd),
      },
    ]),
  )
}

function toSum(text: string | null): bigint | null {
  return text === null ? null : BigInt(text)
}

/** The same for rows that are there already. */
export function addCounters(rows: readonly JobCounters[]): SubtreeCounters {
  const sumOf = (name: keyof JobCounters) =>
    rows.reduce<bigint | null>((sum, { [name]: count }) => (count === null ? sum : (sum ?? 0n) + count), null)
  return {
    jobs: rows.length,
    inputTokens: sumOf('inputTokens'),
    outputTokens: sumOf('outputTokens'),
    reasoningTokens: sumOf('reasoningTokens'),
    totalTokens: sumOf('totalTokens'),
    estimatedInputTokens: sumOf('estimatedInputTokens'),
    estimatedOutputTokens: sumOf('estimatedOutputTokens'),
    costMicroUsd: sumOf('costMicroUsd'),
  }
}
