// How a job's row looks from outside. The one place that projects states and turns 64-bit counters into JSON numbers.
import type { UIMessage } from 'ai'
import { z } from 'zod'
import type { AgentJobView, SubtreeTotals } from './contracts/agent-job.ts'
import { isTerminal, projectState, type TerminalState } from './contracts/job-state.ts'
import { type Reason, reasonSchema } from './contracts/reason.ts'
import type { SyncSpawnOutput } from './contracts/spawn.ts'
import { truncateText } from './contracts/truncated-result.ts'
import { addUsage, type Usage } from './contracts/usage.ts'
import { type AgentJob, toCount } from './db/agent-jobs.ts'
import type { JobCounters, SubtreeCounters } from './db/subtree-counters.ts'

const tagsSchema = z.record(z.string(), z.string())

/** What providers have reported, and the estimate of what was cut. */
export function jobUsage(job: Omit<JobCounters, 'costMicroUsd'>): Usage {
  const reported = {
    inputTokens: toCount(job.inputTokens),
    outputTokens: toCount(job.outputTokens),
    reasoningTokens: toCount(job.reasoningTokens),
    totalTokens: toCount(job.totalTokens),
  }
  const [inputTokens, outputTokens] = [toCount(job.estimatedInputTokens), toCount(job.estimatedOutputTokens)]
  if (inputTokens === null && outputTokens === null) return reported
  const estimatedTokens = (inputTokens ?? 0) + (outputTokens ?? 0)
  return addUsage(reported, {
    inputTokens,
    outputTokens,
    reasoningTokens: null,
    totalTokens: estimatedTokens,
    estimatedTokens,
  })
}

export function toUsd(microUsd: bigint | null): number | null {
  const count = toCount(microUsd)
  return count === null ? null : count / 1_000_000
}

export function toTotals({ jobs, ...counters }: SubtreeCounters): SubtreeTotals {
  return { jobs, usage: jobUsage(counters), costUsd: toUsd(counters.costMicroUsd) }
}

export function jobReason(job: Pick<AgentJob, 'reason'>): Reason {
  return reasonSchema.catch('internal').parse(job.reason)
}

export function toJobView(job: AgentJob, subtree?: SubtreeTotals): AgentJobView {
  return {
    jobId: job.id,
    bot: job.botLabel,
    state: projectState(job),
    ...(job.reason === null ? {} : { reason: jobReason(job) }),
    ...(job.waitingOn === null ? {} : { waitingOn: job.waitingOn }),
    convoId: job.convoId,
    ...(job.parentJobId === null ? {} : { parentJobId: job.parentJobId }),
    rootJobId: job.rootJobId,
    depth: job.depth,
    mode: job.mode,
    ownerId: job.ownerId,
    triggeredBy: job.triggeredById,
    tags: tagsSchema.catch({}).parse(job.tags),
    generation: job.generation,
    attempt: job.attempt,
    steps: job.steps,
    maxSteps: job.maxSteps,
    usage: jobUsage(job),
    costUsd: toUsd(job.costMicroUsd),
    ...(subtree === undefined ? {} : { subtree }),
    partial: job.partial,
    ...(job.error === null ? {} : { error: job.error }),
    createdAt: job.createdAt.toISOString(),
    ...(job.startedAt === null ? {} : { startedAt: job.startedAt.toISOString() }),
    ...(job.finishedAt === null ? {} : { finishedAt: job.finishedAt.toISOString() }),
  }
}

/** The output of a sync spawn whose job has ended. */
export function toSyncOutput(job: AgentJob, messages: UIMessage[]): SyncSpawnOutput {
  return {
    mode: 'sync',
    jobId: job.id,
    convoId: job.convoId,
    state: terminalStateOf(job),
    reason: jobReason(job),
    result: job.result,
    messages,
    usage: jobUsage(job),
    steps: job.steps,
    ...(job.error === null ? {} : { error: job.error }),
    ...(job.partial ? { partial: true } : {}),
  }
}

/**
 * The same as a parent job keeps it: without the messages, which stay in the child's own convo, and with a result of
 * bounded length, of which the whole stays in the child's row.
 */
export function toParentOutput(job: AgentJob): SyncSpawnOutput {
  const output = toSyncOutput(job, [])
  return job.result === null ? output : { ...output, ...shortenedResult(job.id, job.result) }
}

/** A job's result as a model reads it. The way to the rest is told to those that have the tool for it. */
export function shortenedResult(
  jobId: string,
  result: string,
  canReadOn = true,
): { result: string; resultTruncated?: true } {
  const text = truncateText(result, canReadOn ? { ref: jobId } : {})
  return { result: text, ...(text === result ? {} : { resultTruncated: true }) }
}

function terminalStateOf(job: AgentJob): TerminalState {
  if (!isTerminal(job.state)) throw new Error(`Job ${job.id} is ${job.state}; it has no outcome yet.`)
  return job.state
}
