// The end of a job, on every path but the most common one (end-together.ts). One transaction under the tree's lock writes
// the terminal state, the final message, the parent's wake and inbox item, the end of those that end with it, and the
// outbox entries that tell others.
import type { UIMessage } from 'ai'
import { cutMessageParts, lastStepText } from '../agent-message.ts'
import { jobUsage } from '../agent-views.ts'
import { headOf } from '../contracts/text.ts'
import type { JobFinding } from '../contracts/finding.ts'
import { type Reason, REASONS, reasonSchema } from '../contracts/reason.ts'
import {
  type AgentJob,
  type Claim,
  countChildrenToHearOf,
  endJob,
  type Ending,
  type EndingGuard,
  findLiveDescendants,
  parkJob,
  type ReleasedClaim,
  storeAbortWish,
} from '../db/agent-jobs.ts'
import type { Queryable } from '../db/database.ts'
import { appendMessage } from '../db/convos.ts'
import { loadSteps, loadToolCalls } from '../db/journal.ts'
import type { LayerWrite } from '../db/layer-states.ts'
import type { InboxItem } from '../db/generated/client.ts'
import { decodeStored, encodeStored } from '../db/stored-value.ts'
import { inlineWorkerOf } from './deliver.ts'
import { lockConvo, lockTree, transact, type TransactRuntime, type Tx } from './transact.ts'
import { tellOutcome } from './child-outcome.ts'
import { writeLayer } from './layer-state.ts'
import { messageIdOfInboxItem } from './inbox-key.ts'
import { wakeParentOf } from './wake-agent.ts'

/** What the job leaves in its convo: these parts, or what is stored of it, with the text of a step that is not. */
export type FinalMessage = { parts: UIMessage['parts'] } | { cutText: string }

/** Why a job that could end goes on: its inbox has unread items, or sub-agents will put something there. */
export type Stay = 'unread-inbox' | 'parked'

/**
 * Ends a job as one transaction of its own. With `parkTimeoutMs` a job that has steps left does not end while somebody
 * has something to say to it: unread inbox items deserve one more step, and live children with `notifyParent` make it
 * park, holding nothing, for that time at most.
 * @throws LayerVersionError when a parent's layer state was written since the hooks read it: then nothing was written
 * @returns the ended row, or null when somebody else had ended it or taken it over: then nothing was written
 */
export async function finishAgent(
  runtime: TransactRuntime,
  job: Pick<AgentJob, 'id' | 'rootJobId'>,
  options: FinishOptions & { parkTimeoutMs: number | null },
): Promise<AgentJob | null | Stay>
export async function finishAgent(
  runtime: TransactRuntime,
  job: Pick<AgentJob, 'id' | 'rootJobId'>,
  options: FinishOptions,
): Promise<AgentJob | null>
export async function finishAgent(
  runtime: TransactRuntime,
  job: Pick<AgentJob, 'id' | 'rootJobId'>,
  options: FinishOptions & { parkTimeoutMs?: number | null },
): Promise<AgentJob | null | Stay> {
  return transact(runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    if (typeof options.parkTimeoutMs === 'number' && options.guard !== 'unclaimed') {
      const stay = await stayWhileNeeded(tx, { jobId: job.id, ...options.guard }, options.parkTimeoutMs)
      if (stay !== undefined) return stay
    }
    const ended = await finishInTransaction(tx, job.id, options)
    if (ended !== null || options.guard === 'unclaimed') return ended
    // An earlier try of this very transaction may have been committed without an answer.
    const row = await tx.db.agentJob.findUnique({ where: { id: job.id } })
    return row?.state === options.ending.state && row.claimToken === options.guard.token ? row : null
  })
}

/** Whether a job that could end goes on instead; asked before hooks are run for an end that may not come. */
export async function stayBeforeReturn(
  runtime: TransactRuntime,
  job: Pick<AgentJob, 'id' | 'rootJobId'>,
  { guard, parkTimeoutMs }: { guard: ReleasedClaim; parkTimeoutMs: number },
): Promise<Stay | undefined> {
  return transact(runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    return stayWhileNeeded(tx, { jobId: job.id, ...guard }, parkTimeoutMs)
  })
}

async function stayWhileNeeded(tx: Tx, claim: Claim & ReleasedClaim, parkTimeoutMs: number): Promise<Stay | undefined> {
  const { jobId } = claim
  const job = await tx.db.agentJob.findUnique({
    where: { id: jobId, state: 'running', claimToken: claim.token },
    select: { steps: true, maxSteps: true, parks: true },
  })
  if (job === null || job.steps >= job.maxSteps) return undefined
  const unread = await tx.db.inboxItem.findMany({ where: { jobId, consumedAtStep: null }, select: { kind: true } })
  const liveChildren = await countChildrenToHearOf(tx.db, jobId)
  // Of several outcomes the first is read at once and the rest together: while children live, later ones wait for them.
  const waitForRest = liveChildren > 0 && job.parks > 0 && unread.every((item) => item.kind === 'childOutcome')
  if (unread.length > 0 && !waitForRest) {
    if (liveChildren > 0) await tx.db.agentJob.update({ where: { id: jobId }, data: { parks: { increment: 1 } } })
    return 'unread-inbox'
  }
  if (liveChildren > 0 && (await parkJob(tx.db, claim, parkTimeoutMs))) {
    tx.record({ jobId, kind: 'waiting', data: { on: 'inbox', liveChildren } })
    return 'parked'
  }
  return unread.length > 0 ? 'unread-inbox' : undefined
}

export interface FinishOptions {
  guard: EndingGuard
  ending: Ending
  message?: FinalMessage
  actorId?: string
  /** What the reconciler found. */
  finding?: JobFinding
  /** What the layers' `onReturn` hooks have come to. */
  returned?: { writes: readonly LayerWrite[]; failures: readonly Record<string, unknown>[] }
}

/** The same inside a transaction that holds the tree's lock. */
export async function finishInTransaction(
  tx: Tx,
  jobId: string,
  { guard, ending, message, actorId, finding, returned }: FinishOptions,
): Promise<AgentJob | null> {
  const job = await endJob(tx.db, jobId, guard, ending)
  if (job === null) return null
  await storeFinalMessage(tx, job, message)
  tx.record({
    jobId,
    kind: 'ended',
    ...(actorId === undefined ? {} : { actorId }),
    ...(finding === undefined ? {} : { finding }),
    data: { state: ending.state, reason: ending.reason, steps: job.steps, generation: job.generation },
  })
  await tellOutcome(tx, job)
  await wakeParentOf(tx, job)
  if (ending.state !== 'completed')
    await endSubtree(tx, job, { by: actorId ?? null, reason: 'aborted_by_parent', text: null })
  tellOthers(tx, job, ending)
  for (const data of returned?.failures ?? []) tx.record({ jobId, kind: 'layer-failed', data })
  // Last, since nothing is locked after a layer's state. One that was written meanwhile takes all of this back.
  for (const write of [...(returned?.writes ?? [])].sort((a, b) => (a.layerId < b.layerId ? -1 : 1)))
    await writeLayer(tx, write)
  return job
}

/**
 * Stores an abort wish on a job's live descendants, but for those that were spawned to outlive it, and ends at once
 * those that no worker holds. Answers how many it reached.
 */
export async function endSubtree(tx: Tx, job: Pick<AgentJob, 'id'>, wish: AbortWish): Promise<number> {
  const live = await findLiveDescendants(tx.db, job.id)
  const survivors = new Set(
    live.filter((each) => each.mode === 'async' && each.onParentEnd === 'continue').map((each) => each.id),
  )
  const ending = live.filter(
    (each) => !survivors.has(each.id) && !each.ancestorIds.some((ancestor) => survivors.has(ancestor)),
  )
  return abortJobs(tx, ending, wish)
}

/** Stores the wish on these jobs, and ends those that nobody holds. Answers how many it reached. */
async function abortJobs(tx: Tx, jobs: readonly AgentJob[], wish: AbortWish): Promise<number> {
  const wished = await storeWish(tx, jobs, wish)
  await endUnheld(tx, wished, wish)
  return wished.length
}

export interface AbortWish {
  by: string | null
  reason: Reason
  text: string | null
}

/** The wish that stands in a job's row. */
export function wishOf(job: Pick<AgentJob, 'abortRequestedBy' | 'abortReason' | 'abortText'>): AbortWish {
  const reason = reasonSchema.catch('aborted_by_user').parse(job.abortReason)
  return { by: job.abortRequestedBy, reason, text: job.abortText }
}

/** Stores the wish on those of the jobs that are live and have none, and nudges the workers that hold them. */
export async function storeWish(tx: Tx, jobs: readonly AgentJob[], wish: AbortWish): Promise<AgentJob[]> {
  const wished = await storeAbortWish(
    tx.db,
    jobs.map((each) => each.id),
    wish,
  )
  for (const job of wished) {
    tx.record({
      jobId: job.id,
      kind: 'abort-requested',
      ...(wish.by === null ? {} : { actorId: wish.by }),
      data: { reason: wish.reason },
    })
  }
  tx.nudgeWorkers(wished.filter((job) => job.claimToken !== null).map((job) => job.id))
  return wished
}

/** Ends those of the jobs that no worker holds, deepest first. */
export async function endUnheld(tx: Tx, jobs: readonly AgentJob[], wish: AbortWish): Promise<void> {
  const free = jobs.filter((job) => job.claimToken === null).sort((a, b) => b.depth - a.depth)
  for (const job of free)
    await finishInTransaction(tx, job.id, {
      guard: 'unclaimed',
      ending: await unheldEnding(tx.db, job, wish),
      ...(wish.by === null ? {} : { actorId: wish.by }),
    })
}

/** The ending of a job that no worker holds: what its finished steps had said is kept as partial. */
export async function unheldEnding(
  db: Queryable,
  job: Pick<AgentJob, 'id' | 'steps'>,
  { reason, text }: Omit<AbortWish, 'by'>,
): Promise<Ending> {
  const steps = job.steps === 0 ? [] : await loadSteps(db, job.id)
  const { state, sentence } = REASONS[reason]
  return { state, reason, result: lastStepText(steps), error: text ?? sentence, partial: job.steps > 0 }
}

async function storeFinalMessage(tx: Tx, job: AgentJob, message: FinalMessage | undefined): Promise<void> {
  const parts = await partsOf(tx, job, message ?? { cutText: '' })
  const said = await tx.db.inboxItem.findMany({
    where: { jobId: job.id, kind: { in: ['steer', 'childOutcome'] } },
    orderBy: { seq: 'asc' },
  })
  if (said.length === 0 && parts.length === 0) return
  await lockConvo(tx, job.convoId)
  // What was said to the job belongs to the convo's history: before the answer what it has read, behind it what is left
  // for the next turn.
  for (const item of said.filter((each) => each.consumedAtStep !== null)) await keepInboxItem(tx, job, item)
  if (parts.length > 0) await storeAnswer(tx, job, parts)
  for (const item of said.filter((each) => each.consumedAtStep === null)) await keepInboxItem(tx, job, item)
}

async function storeAnswer(tx: Tx, job: AgentJob, parts: UIMessage['parts']): Promise<void> {
  const answer = { parts: encodeStored(parts), usage: encodeStored(jobUsage(job)) }
  // A retried job has answered before: its new answer takes the old one's place.
  const { count } = await tx.db.aiMessage.updateMany({ where: { id: job.id }, data: answer })
  if (count > 0) return
  await appendMessage(tx.db, {
    id: job.id,
    convoId: job.convoId,
    ownerId: job.ownerId,
    role: 'assistant',
    parts,
    jobId: job.id,
    usage: jobUsage(job),
  })
}

async function partsOf(tx: Tx, job: AgentJob, message: FinalMessage): Promise<UIMessage['parts']> {
  if ('parts' in message) return message.parts
  const stored = job.steps > 0
  const steps = stored ? await loadSteps(tx.db, job.id) : []
  return cutMessageParts(steps, stored ? await loadToolCalls(tx.db, job.id) : [], message.cutText)
}

async function keepInboxItem(tx: Tx, job: AgentJob, item: InboxItem): Promise<void> {
  const clientMessageId = messageIdOfInboxItem(job.convoId, item.key)
  const known = await tx.db.aiMessage.count({ where: { convoId: job.convoId, clientMessageId } })
  if (known > 0) return
  // Written by `insertSteer` and `tellOutcome`.
  const parts = decodeStored(item.parts) as UIMessage['parts']
  await appendMessage(tx.db, {
    convoId: job.convoId,
    ownerId: job.ownerId,
    role: 'user',
    parts,
    metadata: { kind: item.kind },
    jobId: job.id,
    clientMessageId,
  })
}

function tellOthers(tx: Tx, job: AgentJob, ending: Ending): void {
  tx.tell({
    jobId: job.id,
    kind: 'ended',
    key: `ended:${job.id}:${job.generation}`,
    payload: {
      generation: job.generation,
      attempt: job.attempt,
      state: ending.state,
      reason: ending.reason,
      error: job.error,
    },
  })
  if (job.attempt === 0 || job.claimToken === null) {
    tx.tell({
      jobId: job.id,
      kind: 'removal',
      key: `removal:${job.id}:${job.deliverySeq}`,
      payload: { lane: job.lane, deliverySeq: job.deliverySeq, ...inlineWorkerOf(job) },
    })
  }
  if (job.completionEventName !== null) {
    const id = `agent-job-${job.id}-${job.generation}`
    tx.tell({
      jobId: job.id,
      kind: 'completionEvent',
      key: `event:${id}`,
      payload: { id, name: job.completionEventName, data: eventData(job) },
    })
  }
}

/** Characters of the result that a completion event carries. */
const EVENT_RESULT_LENGTH = 8_000

/** What was given with the spawn, and what the job has come to, which wins: a given `error` is none of the job's. */
function eventData(job: AgentJob) {
  const result = job.result ?? ''
  const resultTruncated = result.length > EVENT_RESULT_LENGTH
  const own = {
    jobId: job.id,
    convoId: job.convoId,
    state: job.state,
    reason: job.reason,
    result: headOf(result, EVENT_RESULT_LENGTH),
    resultTruncated,
    resultPath: resultTruncated ? `/v1/agents/${job.id}/results/${job.id}` : undefined,
    error: job.error ?? undefined,
    steps: job.steps,
    usage: jobUsage(job),
  }
  return { ...Object(decodeStored(job.completionEventData)), ...own }
}
