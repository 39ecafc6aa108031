// The end that most jobs have, many in one commit: a root job completes that nobody has said anything to, and that waits for
// no sub-agent. Under its tree's lock, as every end; finish-agent.ts does all others.
import type { ModelMessage, UIMessage } from 'ai'
import { jobUsage } from '../agent-views.ts'
import type { Reason } from '../contracts/reason.ts'
import type { Claim, ClaimedJob } from '../db/agent-jobs.ts'
import { type Sql, sql } from '../db/database.ts'
import { eventsInsert, type NewEvent } from '../db/events.ts'
import type { Counters } from '../db/journal.ts'
import { type NewOutboxEntry, outboxInsert } from '../db/outbox.ts'
import { encodeStoredJson, storedText } from '../db/stored-value.ts'
import { freeTreesLock, type LockedTree, type TransactRuntime } from './transact.ts'

export interface CommonEnd {
  job: ClaimedJob
  claim: Claim
  reason: Reason
  result: string
  /** The answer that the job leaves in its convo. */
  parts: UIMessage['parts']
  /** Its last step, whose output is stored and which becomes whole with the end. */
  lastStep: { index: number; messages: readonly ModelMessage[] }
  /** What the job has cost, its last step included. */
  counters: Counters
  /** Viewers have not been sent the end of the last step: it comes with that of the job. */
  endsStep: boolean
}

/** Whether a job can end so, as far as its row tells; what others may have done meanwhile is looked at under the lock. */
export function mayEndTogether(job: ClaimedJob): boolean {
  return (
    job.parentJobId === null &&
    job.mode !== 'turn' &&
    job.generation === 1 &&
    job.completionEventName === null &&
    job.estimatedInputTokens === null
  )
}

/** Ends what can be ended so. `apart`: this one was not; nothing of it was written. */
export async function endTogether(
  runtime: TransactRuntime,
  ends: readonly CommonEnd[],
): Promise<({ steps: number } | 'apart')[]> {
  const { database, metrics, outbox } = runtime
  const lock = freeTreesLock(ends.map(({ job }) => job.rootJobId))
  const { written } = await database.direct.lockThenWrite<LockedTree, { token: string; outboxId: bigint }>(
    lock,
    (trees) => {
      const locked = new Set(trees.map(({ rootJobId }) => rootJobId))
      // Of two attempts at one job in a group, of which one has lost its claim, the second goes alone.
      const firstOf = new Map(ends.toReversed().map((end) => [end.job.id, end]))
      const free = ends.filter((end) => locked.has(end.job.rootJobId) && firstOf.get(end.job.id) === end)
      return free.length === 0 ? undefined : writeEnds(free)
    },
  )
  const outboxIds = new Map(written.map(({ token, outboxId }) => [token, outboxId]))
  const ended = ends.filter(({ claim }) => outboxIds.has(claim.token))
  metrics.countEvents(ended.map(endedEvent))
  outbox.dispatch(ended.map((end) => ({ ...endedEntry(end), id: outboxIds.get(end.claim.token) ?? 0n, attempts: 0 })))
  return ends.map(({ claim, counters }) => (outboxIds.has(claim.token) ? { steps: counters.steps } : 'apart'))
}

function endedEvent({ job, reason, counters }: CommonEnd): NewEvent {
  const data = { state: 'completed', reason, steps: counters.steps, generation: job.generation }
  return { jobId: job.id, kind: 'ended', data }
}

function endedEntry({ job, reason, endsStep }: CommonEnd): NewOutboxEntry {
  const { id: jobId, generation, attempt } = job
  const flag = endsStep ? { endsStep } : {}
  return {
    jobId,
    kind: 'ended',
    key: `ended:${jobId}:${generation}`,
    payload: { generation, attempt, state: 'completed', reason, error: null, ...flag },
  }
}

/** Its rows are the claims whose jobs it has ended, each with what is to be told. */
function writeEnds(ends: readonly CommonEnd[]): Sql {
  const usage = ends.map(({ job, counters }) => encodeStoredJson(jobUsage({ ...job, ...counters })))
  const only = sql`"jobId" in (select "id" from ended)`
  return sql`
    with ending as (
      select * from unnest(
        ${ends.map(({ claim }) => claim.jobId)}::text[], ${ends.map(({ claim }) => claim.token)}::text[],
        ${ends.map(({ reason }) => reason)}::text[], ${ends.map(({ result }) => storedText(result))}::text[],
        ${ends.map(({ parts }) => encodeStoredJson(parts))}::text[], ${usage}::text[],
        ${ends.map(({ lastStep }) => lastStep.index)}::int[],
        ${ends.map(({ lastStep }) => encodeStoredJson(lastStep.messages))}::text[]
      ) ending ("jobId", "token", "reason", "result", "parts", "usage", "stepIndex", "stepMessages")
    ), ended as (
      update "offshoot"."AgentJob" job set
        "state" = 'completed', "reason" = ending."reason", "result" = ending."result", "error" = null, "errorDetail" = null,
        "partial" = false, "reservedTokens" = 0, "reservedCostMicroUsd" = 0, "waitingOn" = null, "waitUntil" = null,
        "finishedAt" = clock_timestamp()
      from ending
      where job."id" = ending."jobId" and "claimToken" = ending."token" and "state" = 'running'
        and not exists (select 1 from "offshoot"."InboxItem" item where item."jobId" = job."id")
        and not exists (
          select 1 from "offshoot"."AgentJob" child
          where child."parentJobId" = job."id" and child."notifyParent" and child."state" in ('pending', 'running'))
      returning job."id", job."claimToken" as "token", job."convoId", job."ownerId"
    ), step as (
      update "offshoot"."AgentStep" step set "responseMessages" = ending."stepMessages"::json, "malformed" = false
      from ending join ended on ended."token" = ending."token"
      where step."jobId" = ending."jobId" and step."index" = ending."stepIndex"
    ), answer as (
      insert into "offshoot"."AiMessage" ("id", "convoId", "ownerId", "seq", "role", "parts", "usage", "jobId")
      select ended."id", ended."convoId", ended."ownerId",
        (select coalesce(max("seq"), 0) + 1 from "offshoot"."AiMessage" known where known."convoId" = ended."convoId"),
        'assistant', ending."parts"::json, ending."usage"::jsonb, ended."id"
      from ended join ending on ending."token" = ended."token"
    ), history as (${eventsInsert(ends.map(endedEvent), only)}), told as (${outboxInsert(ends.map(endedEntry), only)})
    select ended."token", told."id" as "outboxId" from ended join told on told."jobId" = ended."id"`
}
