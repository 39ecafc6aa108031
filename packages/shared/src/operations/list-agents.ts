import { toJobView, toTotals } from '../agent-views.ts'
import type { AgentJobPage, AgentTreeView, ListInput } from '../contracts/agent-job.ts'
import { LIVE_STATES, projectState, TERMINAL_STATES } from '../contracts/job-state.ts'
import type { ListAgentsInput, ListAgentsOutput } from '../contracts/list-agents.ts'
import { tailOf } from '../contracts/text.ts'
import type { Prisma } from '../db/generated/client.ts'
import { loadLastText } from '../db/journal.ts'
import { addCounters } from '../db/subtree-counters.ts'
import { storable } from '../db/stored-value.ts'
import type { Runtime } from '../runtime.ts'
import { findReadableJob, readLiveText } from './check-agent.ts'
import { type JobReader, readableJobs } from './readable-jobs.ts'
import { viewJobs } from './subtree-totals.ts'

/** The reader's jobs, newest first. The cursor is the last job's id. */
export async function listAgents(
  runtime: Pick<Runtime, 'database'>,
  reader: JobReader,
  asked: ListInput,
): Promise<AgentJobPage> {
  const input = storable(asked)
  const filters: Prisma.AgentJobWhereInput[] = [readableJobs(reader)]
  if (input.state !== undefined) filters.push(whereState(input.state))
  if (input.live !== undefined) filters.push({ state: { in: [...(input.live ? LIVE_STATES : TERMINAL_STATES)] } })
  if (input.parentJobId !== undefined) filters.push({ parentJobId: input.parentJobId })
  if (input.rootJobId !== undefined) filters.push({ rootJobId: input.rootJobId })
  if (input.convoId !== undefined) filters.push({ convoId: input.convoId })
  if (input.parentConvoId !== undefined) filters.push({ parentConvoId: input.parentConvoId })
  if (input.ownerId !== undefined) filters.push({ ownerId: input.ownerId })
  if (input.cursor !== undefined) filters.push({ id: { lt: input.cursor } })
  const rows = await runtime.database.agentJob.findMany({
    where: { AND: filters },
    orderBy: { id: 'desc' },
    take: input.limit + 1,
  })
  const jobs = rows.slice(0, input.limit)
  const last = jobs.at(-1)
  return {
    jobs: await viewJobs(runtime, jobs),
    ...(rows.length > input.limit && last !== undefined ? { nextCursor: last.id } : {}),
  }
}

/** Characters of what a sub-agent said last: a model reads many of them at once. */
const LAST_TEXT_LENGTH = 300

/** The reader's sub-agents at a glance, newest first. An admin, too, sees its own only: what a model reads stays small. */
export async function listSubAgents(
  runtime: Runtime,
  reader: JobReader,
  { live, limit }: ListAgentsInput,
): Promise<ListAgentsOutput> {
  const own = 'userId' in reader ? { ...reader, admin: false } : reader
  const jobs = await runtime.database.agentJob.findMany({
    where: { AND: [readableJobs(own), { depth: { gt: 0 } }, live ? { state: { in: [...LIVE_STATES] } } : {}] },
    orderBy: { id: 'desc' },
    take: limit,
  })
  const agents = jobs.map(async (job) => {
    const text = tailOf(
      job.result ?? ((await readLiveText(runtime, job)) || (await loadLastText(runtime.database, job.id))),
      LAST_TEXT_LENGTH,
    )
    return {
      jobId: job.id,
      bot: job.botLabel,
      state: projectState(job),
      step: job.steps,
      ageSeconds: Math.max(0, Math.round((Date.now() - job.createdAt.getTime()) / 1_000)),
      ...(text === '' ? {} : { lastText: text }),
    }
  })
  return { agents: await Promise.all(agents) }
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
  return {
    rootJobId: top.rootJobId,
    jobs: jobs.map((job) => {
      const subtree = jobs.filter((each) => each.id === job.id || each.ancestorIds.includes(job.id))
      return { ...toJobView(job), subtree: toTotals(addCounters(subtree)) }
    }),
  }
}
