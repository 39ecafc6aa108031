import { type UIMessage } from 'ai'
import { agentMessageParts } from '../agent-message.ts'
import { jobReason, jobUsage, toUsd } from '../agent-views.ts'
import { type CheckInput, type CheckOutput, jobNotFound, type JobProgress } from '../contracts/check.ts'
import { isTerminal, projectState } from '../contracts/job-state.ts'
import { tailOf } from '../contracts/text.ts'
import type { AgentJob } from '../db/agent-jobs.ts'
import { loadJobMessages } from '../db/convos.ts'
import { loadSteps, loadToolCalls } from '../db/journal.ts'
import { storedText } from '../db/stored-value.ts'
import { hasWorker } from '../db/workers.ts'
import { ANSWER_LIMIT_MS } from '../queue/redis.ts'
import type { Runtime } from '../runtime.ts'
import { withLimit } from '../with-limit.ts'
import { type JobReader, readableJobs } from './readable-jobs.ts'
import { readSubtreeTotals } from './subtree-totals.ts'
import { waitForAgent } from './wait-for-agent.ts'

/** How much of the live text is shown. */
const LAST_TEXT_LENGTH = 2_000

/**
 * How a job stands. With `waitSeconds` it answers when the job ends or the time is up. A job that is unknown or not the
 * reader's gives `jobNotFound`, the same for both.
 */
export async function checkAgent(
  runtime: Runtime,
  reader: JobReader,
  input: CheckInput,
  signal?: AbortSignal,
): Promise<CheckOutput> {
  const job = await findAfterWait(runtime, reader, input, signal)
  return job === null ? jobNotFound(input.jobId) : describeJob(runtime, job, input.includePartial)
}

/** The same for people and programs: with what the job and its subtree have used up to now. */
export async function checkAgentWithTotals(
  runtime: Runtime,
  reader: JobReader,
  input: CheckInput,
  signal?: AbortSignal,
): Promise<CheckOutput> {
  const job = await findAfterWait(runtime, reader, input, signal)
  if (job === null) return jobNotFound(input.jobId)
  const subtree = (await readSubtreeTotals(runtime, [job.id])).get(job.id)
  return {
    ...(await describeJob(runtime, job, input.includePartial)),
    usage: jobUsage(job),
    costUsd: toUsd(job.costMicroUsd),
    ...(subtree === undefined ? {} : { subtree }),
  }
}

/** The job as it stands when it has ended or the wait is over. */
async function findAfterWait(
  runtime: Runtime,
  reader: JobReader,
  { jobId, waitSeconds }: CheckInput,
  signal: AbortSignal | undefined,
): Promise<AgentJob | null> {
  const job = await findReadableJob(runtime, reader, jobId)
  if (job === null || waitSeconds === 0 || isTerminal(job.state)) return job
  const wait = { limitMs: waitSeconds * 1_000, ...(signal === undefined ? {} : { signal }) }
  return (await waitForAgent(runtime, job.id, wait)) ?? job
}

export async function findReadableJob(
  runtime: Pick<Runtime, 'database'>,
  reader: JobReader,
  jobId: string,
): Promise<AgentJob | null> {
  return runtime.database.agentJob.findFirst({ where: { AND: [{ id: storedText(jobId) }, readableJobs(reader)] } })
}

async function describeJob(runtime: Runtime, job: AgentJob, includePartial: boolean): Promise<CheckOutput> {
  const { database } = runtime
  const output: CheckOutput = {
    jobId: job.id,
    state: projectState(job),
    ...(job.reason === null ? {} : { reason: jobReason(job) }),
    ...(job.waitingOn === null ? {} : { waitingOn: job.waitingOn }),
    ...(job.error === null ? {} : { error: job.error }),
  }
  if (isTerminal(job.state)) {
    return {
      ...output,
      ...(job.result === null ? {} : { result: job.result }),
      ...(job.partial ? { partial: true } : {}),
      messages: await loadJobMessages(database, job),
      usage: jobUsage(job),
      steps: job.steps,
    }
  }
  const progress = await readProgress(runtime, job)
  if (!includePartial) return { ...output, progress }
  const messages = await loadJobMessages(database, job)
  const partial = await partialMessage(runtime, job, progress.lastText ?? '')
  return {
    ...output,
    progress,
    partial: true,
    usage: jobUsage(job),
    steps: job.steps,
    messages: partial === undefined ? messages : [...messages, partial],
  }
}

async function partialMessage({ database }: Runtime, job: AgentJob, liveText: string): Promise<UIMessage | undefined> {
  const parts = agentMessageParts(await loadSteps(database, job.id), await loadToolCalls(database, job.id), liveText)
  return parts.length === 0 ? undefined : { id: job.id, role: 'assistant', parts }
}

async function readProgress(runtime: Runtime, job: AgentJob): Promise<JobProgress> {
  const progress: JobProgress = { step: job.steps, maxSteps: job.maxSteps }
  const openCall = await runtime.database.agentToolCall.findFirst({
    where: { jobId: job.id, finishedAt: null },
    orderBy: { startedAt: 'desc' },
  })
  if (openCall !== null) progress.currentTool = openCall.toolName
  if (job.state === 'pending') return { ...progress, ...(await readPlaceInQueue(runtime, job)) }
  const text = await readLiveText(runtime, job)
  if (text !== '') progress.lastText = tailOf(text, LAST_TEXT_LENGTH)
  return progress
}

/** What a worker has said of the step under way; empty while none runs the job, or Redis is away. */
export async function readLiveText(
  { liveStreams, signals, logger }: Pick<Runtime, 'liveStreams' | 'signals' | 'logger'>,
  job: Pick<AgentJob, 'id' | 'claimToken' | 'state'>,
): Promise<string> {
  let text = ''
  if (job.claimToken === null || isTerminal(job.state) || !signals.pulse.isOk()) return text
  try {
    for (const { chunks } of await liveStreams.readTail(job.id)) {
      for (const chunk of chunks) {
        if (chunk.type === 'start-step') text = ''
        if (chunk.type === 'text-delta') text += chunk.delta
      }
    }
  } catch (error) {
    logger.debug({ jobId: job.id, error }, 'live text not readable')
  }
  return text
}

/** Where a job stands that is to be taken by a worker, and what keeps workers from it. */
async function readPlaceInQueue(
  { config, database, deliveries, inline, signals, logger }: Runtime,
  job: AgentJob,
): Promise<Pick<JobProgress, 'queuePosition' | 'note'>> {
  const { id, lane, deliverySeq } = job
  if (job.runner === 'inline') {
    // It waits for a slot of its own process, which alone knows its place; workers and lanes are nothing to it.
    const ahead = inline?.workerId() === job.workerId ? await inline?.countBefore(lane, id, deliverySeq) : undefined
    return ahead === undefined ? {} : { queuePosition: ahead + 1 }
  }
  const notes = (await hasWorker(database, lane, config.WORKER_LOCK_MS))
    ? []
    : [`No worker is running for lane "${lane}".`]
  let before: number | undefined
  try {
    if (!signals.pulse.isOk()) throw new Error('Redis is away')
    const asked = Promise.all([deliveries.countBefore(lane, id, deliverySeq), deliveries.isPaused(lane)])
    const [rank, paused] = await withLimit(asked, ANSWER_LIMIT_MS)
    before = rank
    if (paused) notes.push(`The queue of lane "${lane}" is paused.`)
  } catch (error) {
    logger.debug({ jobId: id, error }, 'place in the queue not readable')
    notes.push('The queue does not answer; the job is delivered when it does.')
  }
  return {
    ...(before === undefined ? {} : { queuePosition: before + 1 }),
    ...(notes.length === 0 ? {} : { note: notes.join(' ') }),
  }
}
