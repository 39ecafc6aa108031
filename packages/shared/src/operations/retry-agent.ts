// An operator's retry: a failed or aborted job goes on from its journal as a new generation. Steps, tokens and cost go on
// counting; the abort wish is cleared, and the deadline begins anew with the same length, within that of a live parent. A
// retry is held to what a spawn is held to: the user's cap, a place in the queue behind the user's other jobs, and a parent
// that still wants the job. It runs on the queue, also when the job was an inline one: whoever retries it is not the
// process that ran it.
import { isTerminal } from '../contracts/job-state.ts'
import { type AgentJob, deadlineOf, readDeadlineMsLeft } from '../db/agent-jobs.ts'
import { botOfJob } from '../db/bots.ts'
import { isUniqueViolation } from '../db/database-errors.ts'
import { sql } from '../db/database.ts'
import { overridesSchema } from '../contracts/spawn.ts'
import { decodeStored } from '../db/stored-value.ts'
import type { RetryInput } from '../contracts/retry.ts'
import { findReadableJob } from './check-agent.ts'
import { refuseRetriedBudget, refuseUnknownPrice, toMicroUsd, toTokens } from './budget.ts'
import { priorityOfNewJob, tellDelivery } from './deliver.ts'
import { refuse, type Refusal } from './prepare-spawn.ts'
import { recordRefusal, refusedEvent } from './refusals.ts'
import type { JobReader } from './readable-jobs.ts'
import { checkUserCap } from './spawn-agent.ts'
import type { Runtime } from '../runtime.ts'
import { lockTree, transact, type Tx } from './transact.ts'

export type RetryAnswer =
  | { kind: 'retried'; job: AgentJob }
  | { kind: 'refused'; refusal: Refusal }
  /** Another turn of the job's convo is live. */
  | { kind: 'busy' }
  | { kind: 'not_found' }

/** The last step of a job that ended with one of these is made again: its output was the trouble. */
const LAST_STEP_IS_MADE_AGAIN = ['output_limit', 'content_filter', 'empty_output', 'invalid_tool_input']

export async function retryAgent(
  runtime: Runtime,
  reader: JobReader,
  input: RetryInput,
  actorId: string,
): Promise<RetryAnswer> {
  const found = await findReadableJob(runtime, reader, input.jobId)
  if (found === null) return { kind: 'not_found' }
  try {
    return await transact(runtime, async (tx) => {
      await lockTree(tx, found.rootJobId)
      const answer = await retryInTransaction(runtime, tx, found.id, input, actorId)
      if (answer.kind === 'refused') {
        const { reason, error } = answer.refusal
        tx.record(refusedEvent({ jobId: found.id, actorId, what: 'retry', reason, error }))
      }
      return answer
    })
  } catch (error) {
    // A convo has one live turn: another one has begun since.
    if (!isUniqueViolation(error)) throw error
    await recordRefusal(runtime, { jobId: found.id, actorId, what: 'retry', error: 'The convo has a live turn.' })
    return { kind: 'busy' }
  }
}

async function retryInTransaction(
  runtime: Runtime,
  tx: Tx,
  jobId: string,
  input: RetryInput,
  actorId: string,
): Promise<RetryAnswer> {
  // The job's row before the user's: the lock order.
  await tx.db.$executeRaw(sql`select 1 from "offshoot"."AgentJob" where "id" = ${jobId} for update`)
  const before = await tx.db.agentJob.findUnique({ where: { id: jobId } })
  // Retention was faster.
  if (before === null) return { kind: 'not_found' }
  const steps = Math.max(0, before.steps - (LAST_STEP_IS_MADE_AGAIN.includes(before.reason ?? '') ? 1 : 0))
  const maxSteps = input.maxSteps ?? before.maxSteps
  const unfit = whyUnfit(before, { steps, maxSteps })
  if (unfit !== undefined) return { kind: 'refused', refusal: unfit }
  const parent = await lookAtParent(tx, before)
  if ('refused' in parent) return { kind: 'refused', refusal: parent }
  const cap = await checkUserCap(runtime, tx, before.ownerId)
  if ('refused' in cap) return { kind: 'refused', refusal: cap }
  const askedMs = input.timeoutSeconds === undefined ? before.timeoutMs : input.timeoutSeconds * 1_000
  const timeoutMs = Math.ceil(Math.min(askedMs, parent.deadlineMsLeft))
  const asked = {
    maxTotalTokens: toTokens(input.budget?.maxTotalTokens),
    maxCostMicroUsd: toMicroUsd(input.budget?.maxCostUsd),
  }
  const model = modelOf(before)
  const budget =
    asked.maxCostMicroUsd !== null && !runtime.extensions.prices.has(model)
      ? refuseUnknownPrice(model)
      : await refuseRetriedBudget(tx, before, asked)
  if (budget !== undefined) return { kind: 'refused', refusal: budget }
  if (steps < before.steps) await dropLastStep(tx, before)
  const rows = await tx.db.$queryRaw<AgentJob[]>(sql`
    update "offshoot"."AgentJob" set
      "state" = 'pending', "generation" = "generation" + 1, "reason" = null, "result" = null, "error" = null,
      "errorDetail" = null, "partial" = false, "finishedAt" = null, "claimToken" = null, "workerId" = null,
      "runner" = 'queue', "crashes" = 0, "stepRetries" = 0,
      "abortRequestedAt" = null, "abortRequestedBy" = null, "abortReason" = null, "abortText" = null, "completionEventFired" = false,
      "maxTotalTokens" = coalesce(${asked.maxTotalTokens}, "maxTotalTokens"),
      "maxCostMicroUsd" = coalesce(${asked.maxCostMicroUsd}, "maxCostMicroUsd"),
      "budgeted" = "budgeted" or ${input.budget !== undefined}, "maxSteps" = ${maxSteps},
      "priority" = greatest("priority", ${priorityOfNewJob(cap.activeJobs, 0)}), "timeoutMs" = ${timeoutMs},
      "deadlineAt" = least(clock_timestamp() + make_interval(secs => ${timeoutMs / 1000}), ${deadlineOf(parent.boundBy)}),
      "deliverySeq" = "deliverySeq" + 1, "deliveredAt" = clock_timestamp()
    where "id" = ${jobId} and "state" in ('failed', 'aborted') and "generation" = ${before.generation}
    returning *`)
  const job = rows[0]
  if (job === undefined) throw new Error(`Job ${jobId} changed under its tree's lock.`)
  tx.record({
    jobId,
    kind: 'retried',
    actorId,
    data: { generation: job.generation, from: before.state, reason: before.reason },
  })
  // What failed before is history, and no longer a failure for whoever looks at the queue.
  tx.tell({
    jobId,
    kind: 'removal',
    key: `removal:${jobId}:${before.deliverySeq}`,
    payload: { lane: before.lane, deliverySeq: before.deliverySeq },
  })
  tellDelivery(tx, job, 'new')
  return { kind: 'retried', job }
}

/** The model that the job calls, as "integration:modelName". */
function modelOf(job: AgentJob): string {
  const { integration, modelName } = botOfJob(job)
  return overridesSchema.parse(decodeStored(job.overrides)).modelOverride ?? `${integration}:${modelName}`
}

function whyUnfit(job: AgentJob, { steps, maxSteps }: { steps: number; maxSteps: number }): Refusal | undefined {
  if (job.state !== 'failed' && job.state !== 'aborted')
    return refuse('invalid_request', `Only a failed or aborted job can be retried; this one is ${job.state}.`)
  if (steps < maxSteps) return undefined
  return refuse(
    'invalid_request',
    `The job has made ${steps} of ${maxSteps} steps. Give a larger maxSteps to retry it.`,
  )
}

/**
 * What a child's parent leaves it: the time to the parent's own deadline while that is live. A parent that has ended, or is
 * about to, leaves it none, unless this is a job that outlives its parent's end.
 */
async function lookAtParent(
  tx: Tx,
  job: AgentJob,
): Promise<Refusal | { deadlineMsLeft: number; boundBy: string | null }> {
  const unbound = { deadlineMsLeft: Infinity, boundBy: null }
  if (job.parentJobId === null) return unbound
  const parent = await tx.db.agentJob.findUnique({
    where: { id: job.parentJobId },
    select: { state: true, abortRequestedAt: true },
  })
  if (parent !== null && !isTerminal(parent.state) && parent.abortRequestedAt === null)
    return { deadlineMsLeft: await readDeadlineMsLeft(tx.db, job.parentJobId), boundBy: job.parentJobId }
  const outlives = job.mode === 'async' && (job.onParentEnd === 'continue' || parent?.state === 'completed')
  if (outlives) return unbound
  return refuse(
    'invalid_request',
    `Its parent, job ${job.parentJobId}, has ended or is about to, and this job does not go on without it. Retry the parent first, or spawn a new job.`,
  )
}

/** The cost of the step stays counted; only its output goes. */
async function dropLastStep(tx: Tx, { id: jobId, steps }: AgentJob): Promise<void> {
  await tx.db.agentStep.deleteMany({ where: { jobId, index: steps - 1 } })
  await tx.db.agentToolCall.deleteMany({ where: { jobId, stepIndex: steps - 1 } })
  await tx.db.inboxItem.updateMany({ where: { jobId, consumedAtStep: steps - 1 }, data: { consumedAtStep: null } })
  await tx.db.agentJob.update({ where: { id: jobId }, data: { steps: steps - 1 } })
}
