// Jobs as people and programs see them: with what each has used itself, and what its whole subtree has.
import { toJobView, toTotals } from '../agent-views.ts'
import type { AgentJobView, SubtreeTotals } from '../contracts/agent-job.ts'
import type { AgentJob } from '../db/agent-jobs.ts'
import { readSubtreeCounters } from '../db/subtree-counters.ts'
import type { Runtime } from '../runtime.ts'

/** One query for all of them. A job that retention has removed meanwhile has none. */
export async function readSubtreeTotals(
  { database }: Pick<Runtime, 'database'>,
  jobIds: readonly string[],
): Promise<Map<string, SubtreeTotals>> {
  if (jobIds.length === 0) return new Map()
  const counters = await readSubtreeCounters(database, jobIds)
  return new Map([...counters].map(([id, each]) => [id, toTotals(each)]))
}

export async function viewJobs(runtime: Pick<Runtime, 'database'>, jobs: readonly AgentJob[]): Promise<AgentJobView[]> {
  const totals = await readSubtreeTotals(
    runtime,
    jobs.map((job) => job.id),
  )
  return jobs.map((job) => toJobView(job, totals.get(job.id)))
}

export async function viewJob(runtime: Pick<Runtime, 'database'>, job: AgentJob): Promise<AgentJobView> {
  return toJobView(job, (await readSubtreeTotals(runtime, [job.id])).get(job.id))
}
