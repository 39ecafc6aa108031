// The end that most jobs have, many in one commit: a root job completes that nobody has said anything to, and that waits for
// no sub-agent. Under its tree's lock, as every end; finish-agent.ts does all others.
import type { ModelMessage, UIMessage } from 'ai'
import { jobUsage } from '../agent-views.ts'
import type { Reason } from '../contracts/reason.ts'
import { addUsage } from '../contracts/usage.ts'
import type { Claim, ClaimedJob } from '../db/agent-jobs.ts'
import { type Sql, sql } from '../db/database.ts'
import { eventsInsert, type NewEvent } from '../db/events.ts'
import { COUNTED, type Counters, type ModelOutput, OUTPUT_COLUMNS, outputArrays, stepsInsert } from '../db/journal.ts'
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
  /** Its last step, which is stored with the end: what the model said, and what that adds to the messages. */
  lastStep: { output: ModelOutput; messages: readonly ModelMessage[] }
  /** What the job had cost before it. */
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
  return ends.map((end) => (outboxIds.has(end.claim.token) ? { steps: stepsOf(end) } : 'apart'))
}

function stepsOf({ lastStep }: CommonEnd): number {
  return lastStep.output.index + 1
}

function endedEvent(end: CommonEnd): NewEvent {
  const { job, reason } = end
  const data = { state: 'completed', reason, steps: stepsOf(end), generation: job.generation }
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
  const usage = ends.map(({ job, counters, lastStep }) =>
    encodeStoredJson(addUsage(jobUsage({ ...job, ...counters }), lastStep.output.usage)),
  )
  const only = sql`"jobId" in (select "id" from holder)`
  return sql`
    with said as (
      select * from unnest(
        ${outputArrays(ends.map(({ claim, lastStep }) => ({ claim, output: lastStep.output })))},
        ${ends.map(({ lastStep }) => encodeStoredJson(lastStep.messages))}::text[],
        ${ends.map(({ reason }) => reason)}::text[], ${ends.map(({ result }) => storedText(result))}::text[],
        ${ends.map(({ parts }) => encodeStoredJson(parts))}::text[], ${usage}::text[]
      ) said (${OUTPUT_COLUMNS}, "messages", "reason", "result", "parts", "jobUsage")
    ), holder as (
      update "offshoot"."AgentJob" job set
        "state" = 'completed', "reason" = said."reason", "result" = said."result", "error" = null, "errorDetail" = null,
        "partial" = false, "waitingOn" = null, "waitUntil" = null, "finishedAt" = clock_timestamp(), ${COUNTED}
      from said
      where job."id" = said."jobId" and "claimToken" = said."token" and "state" = 'running'
        and "abortRequestedAt" is null
        and not exists (select 1 from "offshoot"."InboxItem" item where item."jobId" = job."id")
        and not exists (
          select 1 from "offshoot"."AgentJob" child
          where child."parentJobId" = job."id" and child."notifyParent" and child."state" in ('pending', 'running'))
      returning job."id", job."claimToken" as "token", job."convoId", job."ownerId"
    ), step as (${stepsInsert({ messages: sql`said."messages"::json` })}), answer as (
      insert into "offshoot"."AiMessage" ("id", "convoId", "ownerId", "seq", "role", "parts", "usage", "jobId")
      select holder."id", holder."convoId", holder."ownerId",
        (select coalesce(max("seq"), 0) + 1 from "offshoot"."AiMessage" known where known."convoId" = holder."convoId"),
        'assistant', said."parts"::json, said."jobUsage"::jsonb, holder."id"
      from holder join said on said."token" = holder."token"
    ), history as (${eventsInsert(ends.map(endedEvent), only)}), told as (${outboxInsert(ends.map(endedEntry), only)})
    select holder."token", told."id" as "outboxId" from holder join told on told."jobId" = holder."id"`
}
