import { toJobView } from '../agent-views.ts'
import type { AgentJobPage, AgentTreeView, ListInput } from '../contracts/agent-job.ts'
import { addUsage, UNKNOWN_USAGE, type Usage } from '../contracts/usage.ts'
import type { AgentJob } from '../db/agent-jobs.ts'
import type { Prisma } from '../db/generated/client.ts'
import { storable } from '../db/stored-value.ts'
import type { Runtime } from '../runtime.ts'
import { findReadableJob } from './check-agent.ts'
import { type JobReader, readableJobs } from './readable-jobs.ts'

/** The reader's jobs, newest first. The cursor is the last job's id. */
export async function listAgents(
  { database }: Pick<Runtime, 'database'>,
  reader: JobReader,
  asked: ListInput,
): Promise<AgentJobPage> {
  const input = storable(asked)
  const filters: Prisma.AgentJobWhereInput[] = [readableJobs(reader)]
  if (input.state !== undefined) filters.push(whereState(input.state))
  if (input.live !== undefined)
    filters.push({ state: { in: input.live ? ['pending', 'running'] : ['completed', 'failed', 'aborted'] } })
  if (input.parentJobId !== undefined) filters.push({ parentJobId: input.parentJobId })
  if (input.rootJobId !== undefined) filters.push({ rootJobId: input.rootJobId })
  if (input.convoId !== undefined) filters.push({ convoId: input.convoId })
  if (input.cursor !== undefined) filters.push({ id: { lt: input.cursor } })
  const rows = await database.agentJob.findMany({
    where: { AND: filters },
    orderBy: { id: 'desc' },
    take: input.limit + 1,
  })
  const jobs = rows.slice(0, input.limit)
  const last = jobs.at(-1)
  return {
    jobs: jobs.map(toJobView),
    ...(rows.length > input.limit && last !== undefined ? { nextCursor: last.id } : {}),
  }
}

/** The state as others see it: a pending job that was claimed before shows as running. */
function whereState(state: NonNullable<ListInput['state']>): Prisma.AgentJobWhereInput {
  if (state === 'pending') return { state, attempt: 0 }
  if (state === 'running') return { OR: [{ state }, { state: 'pending', attempt: { gt: 0 } }] }
  return { state }
}

/** A job and all its descendants, with the totals of each one's subtree; null when the job is not the reader's. */
export async function readTree(
  runtime: Pick<Runtime, 'database'>,
  reader: JobReader,
  jobId: string,
): Promise<AgentTreeView | null> {
  const top = await findReadableJob(runtime, reader, jobId)
  if (top === null) return null
  const descendants = await runtime.database.agentJob.findMany({
    where: { ancestorIds: { has: top.id } },
    orderBy: { id: 'asc' },
  })
  const jobs = [top, ...descendants]
  return { rootJobId: top.rootJobId, jobs: jobs.map((job) => ({ ...toJobView(job), subtree: totalsOf(job, jobs) })) }
}

function totalsOf(job: AgentJob, jobs: readonly AgentJob[]): AgentTreeView['jobs'][number]['subtree'] {
  const subtree = jobs.filter((each) => each.id === job.id || each.ancestorIds.includes(job.id)).map(toJobView)
  const usage = subtree.map((each) => each.usage).reduce<Usage>(addUsage, UNKNOWN_USAGE)
  const costs = subtree.map((each) => each.costUsd).filter((cost) => cost !== null)
  return {
    jobs: subtree.length,
    usage,
    costUsd: costs.length === 0 ? null : costs.reduce((sum, cost) => sum + cost, 0),
  }
}
