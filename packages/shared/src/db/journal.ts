// The journal: the stored steps and tool calls of a job. Every write carries the claim and answers what the attempt must
// know: whether it still holds the job, and whether somebody wants it to stop.
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import type { ModelMessage } from 'ai'
import { Prisma } from './generated/client.ts'
import { stepText } from '../agent-message.ts'
import { knownCount, type Usage } from '../contracts/usage.ts'
import type { AgentJob, Claim } from './agent-jobs.ts'
import { type Queryable, type Sql, sql } from './database.ts'
import type { Statements } from './direct-sql.ts'
import { decodeStored, encodeStoredJson, STORED_FORMAT, storedText } from './stored-value.ts'

export interface StoredStep {
  index: number
  /** Which generation of the job made it; absent in a step that this attempt has made itself. */
  generation?: number
  finishReason: string | null
  usage: Usage | null
  /** What the model said, as the AI SDK's provider parts. */
  modelOutput: LanguageModelV4StreamPart[]
  /** What the step adds to the messages; null until all its tool results are stored: then the step is whole. */
  responseMessages: ModelMessage[] | null
  /** It called tools, and every call was malformed. */
  malformed?: boolean
}

export interface StoredToolCall {
  stepIndex: number
  toolCallId: string
  toolName: string
  /** Absent while the call has started and not ended. */
  outcome?: { output: unknown } | { error: unknown }
}

export interface StoredInboxItem {
  seq: bigint
  parts: { type: 'text'; text: string }[]
  /** The step that took it; null while it waits. */
  consumedAtStep: number | null
}

/** What an attempt learns from each of its writes. */
export interface WriteAnswer {
  /** False: the claim was lost, nothing was written. */
  held: boolean
  abortRequested: boolean
}

const NOT_HELD: WriteAnswer = { held: false, abortRequested: false }

export async function loadSteps(db: Queryable, jobId: string): Promise<StoredStep[]> {
  const rows = await db.agentStep.findMany({ where: { jobId }, orderBy: { index: 'asc' } })
  return rows.map((row) => ({
    index: row.index,
    generation: row.generation,
    finishReason: row.finishReason,
    // Written by `storeModelOutput` and `storeWholeStep` from values of these types.
    usage: row.usage === null ? null : (row.usage as Usage),
    modelOutput: (decodeStored(row.modelOutput) ?? []) as LanguageModelV4StreamPart[],
    responseMessages: row.responseMessages === null ? null : (decodeStored(row.responseMessages) as ModelMessage[]),
    malformed: row.malformed,
  }))
}

/** The text of a job's last whole step; empty when there is none. */
export async function loadLastText(db: Queryable, jobId: string): Promise<string> {
  const row = await db.agentStep.findFirst({
    where: { jobId, responseMessages: { not: Prisma.DbNull } },
    orderBy: { index: 'desc' },
    select: { responseMessages: true },
  })
  // Written by `storeWholeStep`.
  return stepText({ responseMessages: (decodeStored(row?.responseMessages) ?? null) as ModelMessage[] | null })
}

export async function loadToolCalls(db: Queryable, jobId: string): Promise<StoredToolCall[]> {
  const rows = await db.agentToolCall.findMany({
    where: { jobId },
    orderBy: [{ stepIndex: 'asc' }, { startedAt: 'asc' }],
  })
  return rows.map(({ stepIndex, toolCallId, toolName, finishedAt, output, error }) => ({
    stepIndex,
    toolCallId,
    toolName,
    ...(finishedAt === null
      ? {}
      : { outcome: error === null ? { output: decodeStored(output) } : { error: decodeStored(error) } }),
  }))
}

export async function loadInbox(db: Queryable, jobId: string): Promise<StoredInboxItem[]> {
  const rows = await db.inboxItem.findMany({ where: { jobId }, orderBy: { seq: 'asc' } })
  return rows.map(({ seq, parts, consumedAtStep }) => ({
    seq,
    consumedAtStep,
    parts: decodeStored(parts) as StoredInboxItem['parts'],
  }))
}

/** The job's row while the claim holds, locked against whoever would take it away until the statement ends. */
function holder(claim: Claim) {
  return sql`select "id", "abortRequestedAt" is not null as "abortRequested" from "offshoot"."AgentJob"
    where "id" = ${claim.jobId} and "claimToken" = ${claim.token} and "state" = 'running' for update`
}

export interface ModelOutput {
  index: number
  generation: number
  parts: readonly LanguageModelV4StreamPart[]
  usage: Usage
  /** Whole micro-dollars; absent or null where it is not known. */
  costMicroUsd?: number | null
  finishReason: string
  elapsedMs: number
  /** Inbox items that were part of this call's prompt: they are consumed with it. */
  inboxSeqs: readonly bigint[]
}

export interface OutputToStore {
  claim: Claim
  output: ModelOutput
}

/** What an attempt learns when an output of its model is stored. */
export interface OutputAnswer extends WriteAnswer {
  /** The job's counters, this step included. */
  counters: Counters | null
}

export type Counters = Pick<AgentJob, 'steps' | 'inputTokens' | 'outputTokens' | 'reasoningTokens' | 'totalTokens'>

/**
 * Stores what the model said in a step, what it cost, and which inbox items it has read. One statement, one commit; a
 * repeat, after a commit whose answer was lost, adds nothing.
 */
export async function storeModelOutput(db: Statements, claim: Claim, output: ModelOutput): Promise<OutputAnswer> {
  const [answer] = await storeGroup(db, [{ claim, output }], sql``)
  return answer === undefined ? { ...NOT_HELD, counters: null } : toAnswer(answer)
}

/** The same for steps of many jobs. `apart`: store this one alone; somebody holds its row, or the claim is gone. */
export async function storeModelOutputs(
  db: Statements,
  outputs: readonly OutputToStore[],
): Promise<(OutputAnswer | 'apart')[]> {
  const stored = await storeGroup(db, outputs, sql`for update skip locked`)
  const byToken = new Map(stored.map((answer) => [answer.token, answer]))
  return outputs.map(({ claim }) => {
    const answer = byToken.get(claim.token)
    return answer === undefined ? 'apart' : toAnswer(answer)
  })
}

type StoredAnswer = Counters & { token: string; abortRequested: boolean }

function toAnswer({ abortRequested, token: _token, ...counters }: StoredAnswer): OutputAnswer {
  return { held: true, abortRequested, counters }
}

/** Adds a count to a column for a step that is not counted yet; an unknown count changes nothing. */
function added(column: string): Prisma.Sql {
  const name = Prisma.raw(`"${column}"`)
  return sql`${name} = case when job."steps" > said."index" or said.${name} is null then job.${name}
    else coalesce(job.${name}, 0) + said.${name} end`
}

/** `lock`: how a row that somebody else holds is treated. */
async function storeGroup(db: Statements, outputs: readonly OutputToStore[], lock: Sql): Promise<StoredAnswer[]> {
  const read = outputs.flatMap(({ claim, output }) => output.inboxSeqs.map((seq) => ({ seq, claim, output })))
  return db.$queryRaw<StoredAnswer[]>(sql`
    with said as (select * from unnest(${outputArrays(outputs)}) said (${OUTPUT_COLUMNS})),
    free as (
      select "id" from "offshoot"."AgentJob" where "id" in (select "jobId" from said) order by "id" ${lock}
    ), holder as (
      update "offshoot"."AgentJob" job set ${COUNTED}
      from said, free
      where job."id" = said."jobId" and job."id" = free."id" and "claimToken" = said."token" and "state" = 'running'
      returning job."id", job."claimToken" as "token", job."abortRequestedAt" is not null as "abortRequested",
        job."steps", job."inputTokens", job."outputTokens", job."reasoningTokens", job."totalTokens"
    ), step as (${stepsInsert({ messages: sql`null::json` })}), read as (
      update "offshoot"."InboxItem" item set "consumedAtStep" = read."index"
      from unnest(${read.map(({ seq }) => seq)}::bigint[], ${read.map(({ claim }) => claim.token)}::text[],
        ${read.map(({ output }) => output.index)}::int[]) read ("seq", "token", "index")
        join holder on holder."token" = read."token"
      where item."seq" = read."seq" and item."jobId" = holder."id"
    )
    select "token", "abortRequested", "steps", "inputTokens", "outputTokens", "reasoningTokens", "totalTokens" from holder`)
}

/** Outputs as arrays for an `unnest`, whose columns are `OUTPUT_COLUMNS`; the statements below call its rows `said`. */
export function outputArrays(outputs: readonly OutputToStore[]): Sql {
  const column = <T>(of: (output: ModelOutput) => T): T[] => outputs.map(({ output }) => of(output))
  const counts = (of: (usage: Usage) => number | null) => column(({ usage }) => knownCount(of(usage)))
  return sql`
    ${outputs.map(({ claim }) => claim.jobId)}::text[], ${outputs.map(({ claim }) => claim.token)}::text[],
    ${column((output) => output.index)}::int[], ${column((output) => output.generation)}::int[],
    ${column((output) => encodeStoredJson(output.parts))}::text[], ${column((output) => JSON.stringify(output.usage))}::text[],
    ${column((output) => output.finishReason)}::text[], ${column((output) => output.elapsedMs / 1_000)}::float8[],
    ${counts((usage) => usage.inputTokens)}::bigint[], ${counts((usage) => usage.outputTokens)}::bigint[],
    ${counts((usage) => usage.reasoningTokens)}::bigint[], ${counts((usage) => usage.totalTokens)}::bigint[],
    ${column((output) => knownCount(output.costMicroUsd))}::bigint[]`
}

export const OUTPUT_COLUMNS = sql`"jobId", "token", "index", "generation", "modelOutput", "usage", "finishReason", "elapsedS",
  "inputTokens", "outputTokens", "reasoningTokens", "totalTokens", "costMicroUsd"`

/** Counts the output `said` in its `job`, once however often it is stored. */
export const COUNTED = sql`
  "steps" = greatest("steps", said."index" + 1), "crashes" = 0, "stepRetries" = 0,
  "journalFormat" = greatest("journalFormat", ${STORED_FORMAT}),
  ${added('inputTokens')}, ${added('outputTokens')}, ${added('reasoningTokens')}, ${added('totalTokens')},
  ${added('costMicroUsd')}, "reservedTokens" = 0, "reservedCostMicroUsd" = 0`

/** Inserts the steps of `said` whose claims are in `holder`. `messages`: what they add to the messages; null: not known yet. */
export function stepsInsert({ messages }: { messages: Sql }): Sql {
  return sql`
    insert into "offshoot"."AgentStep"
      ("jobId", "index", "generation", "format", "modelOutput", "usage", "finishReason", "startedAt", "finishedAt", "responseMessages")
    select said."jobId", said."index", said."generation", ${STORED_FORMAT}, said."modelOutput"::json, said."usage"::jsonb,
      said."finishReason", clock_timestamp() - make_interval(secs => said."elapsedS"), clock_timestamp(), ${messages}
    from said join holder on holder."token" = said."token"
    on conflict ("jobId", "index") do update set "responseMessages" = excluded."responseMessages"
      where excluded."responseMessages" is not null`
}

/**
 * Stores that all tool results of a step are there, what it adds to the messages, and whether its calls were all malformed.
 * Answers also whether the job's inbox has unread items.
 */
export async function storeWholeStep(
  db: Statements,
  claim: Claim,
  index: number,
  responseMessages: readonly ModelMessage[],
  malformed = false,
): Promise<WriteAnswer & { unread: boolean }> {
  const rows = await db.$queryRaw<{ abortRequested: boolean; unread: boolean }[]>(sql`
    with holder as (${holder(claim)}), step as (
      update "offshoot"."AgentStep" set "responseMessages" = ${encodeStoredJson(responseMessages)}::json,
        "malformed" = ${malformed}
      where "jobId" in (select "id" from holder) and "index" = ${index}
    )
    select "abortRequested", exists (
      select 1 from "offshoot"."InboxItem" where "jobId" = "id" and "consumedAtStep" is null) as "unread"
    from holder`)
  const row = rows[0]
  return row === undefined ? { ...NOT_HELD, unread: false } : { held: true, ...row }
}

export interface ToolCallKey {
  stepIndex: number
  toolCallId: string
  toolName: string
}

export async function storeToolStart(db: Statements, claim: Claim, call: ToolCallKey): Promise<WriteAnswer> {
  return answerOf(
    db,
    sql`
    with holder as (${holder(claim)}), call as (
      insert into "offshoot"."AgentToolCall" ("jobId", "stepIndex", "toolCallId", "toolName")
      select "id", ${call.stepIndex}, ${storedText(call.toolCallId)}, ${storedText(call.toolName)} from holder
      on conflict do nothing
    )
    select "abortRequested" from holder`,
  )
}

export type ToolEnd = ToolCallKey & {
  outcome: { output: unknown } | { error: unknown }
  /** The whole text of an outcome that holds only its head and tail. */
  whole?: { ref: string; text: string }
}

export async function storeToolEnd(db: Statements, claim: Claim, call: ToolEnd): Promise<WriteAnswer> {
  const { whole } = call
  const kept =
    whole === undefined
      ? Prisma.empty
      : sql`, blob as (
          insert into "offshoot"."Blob" ("id", "jobId", "bytes")
          select ${whole.ref}, "id", convert_to(${storedText(whole.text)}, 'UTF8') from holder
          on conflict do nothing
        )`
  return answerOf(
    db,
    sql`
    with holder as (${holder(claim)}), call as (${toolEndInsert(sql`holder`, call)})${kept}
    select "abortRequested" from holder`,
  )
}

/** The same inside a transaction that has checked the claim already. */
export async function insertToolEnd(db: Queryable, jobId: string, call: Omit<ToolEnd, 'whole'>): Promise<void> {
  await db.$executeRaw(toolEndInsert(sql`(select ${jobId}::text as "id") job`, call))
}

function toolEndInsert(source: Prisma.Sql, call: Omit<ToolEnd, 'whole'>) {
  const output = 'output' in call.outcome ? encodeStoredJson(call.outcome.output) : null
  // A json null in `error` would read as none.
  const thrown = 'error' in call.outcome ? (call.outcome.error ?? new Error('The tool threw no error.')) : undefined
  const error = thrown === undefined ? null : encodeStoredJson(thrown)
  return sql`
    insert into "offshoot"."AgentToolCall" ("jobId", "stepIndex", "toolCallId", "toolName", "finishedAt", "output", "error")
    select "id", ${call.stepIndex}, ${storedText(call.toolCallId)}, ${storedText(call.toolName)}, clock_timestamp(), ${output}::json, ${error}::json from ${source}
    on conflict ("jobId", "stepIndex", "toolCallId") do update
      set "finishedAt" = excluded."finishedAt", "output" = excluded."output", "error" = excluded."error"
      where "AgentToolCall"."finishedAt" is null`
}

async function answerOf(db: Statements, statement: Prisma.Sql): Promise<WriteAnswer> {
  const rows = await db.$queryRaw<{ abortRequested: boolean }[]>(statement)
  const row = rows[0]
  return row === undefined ? NOT_HELD : { held: true, abortRequested: row.abortRequested }
}
