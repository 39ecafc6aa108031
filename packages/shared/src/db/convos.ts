import type { UIMessage } from 'ai'
import type { AgentJob, AiMessage, MessageRole, Prisma } from './generated/client.ts'
import { newId } from '../ids.ts'
import { type Queryable, sql } from './database.ts'
import type { Statements } from './direct-sql.ts'
import { decodeStored, encodeStored } from './stored-value.ts'

/** A turn's history is the newest messages up to this number, cut at a user message. */
export const HISTORY_LIMIT = 200

export interface NewMessage {
  /** Given for a job's answer: the job's own id, which viewers know from its first frame. */
  id?: string
  convoId: string
  ownerId: string
  role: MessageRole
  parts: UIMessage['parts']
  metadata?: unknown
  usage?: unknown
  jobId?: string
  clientMessageId?: string
}

/** Adds a message at the end of a convo whose row the caller has locked (or just made), and answers its number. */
export async function appendMessage(db: Queryable, message: NewMessage): Promise<{ id: string; seq: number }> {
  const last = await db.aiMessage.aggregate({ where: { convoId: message.convoId }, _max: { seq: true } })
  const seq = (last._max.seq ?? 0) + 1
  const id = message.id ?? newId()
  await db.aiMessage.create({
    data: {
      id,
      convoId: message.convoId,
      ownerId: message.ownerId,
      seq,
      role: message.role,
      parts: encodeStored(message.parts),
      ...(message.metadata === undefined ? {} : { metadata: encodeStored(message.metadata) }),
      ...(message.usage === undefined ? {} : { usage: encodeStored(message.usage) }),
      jobId: message.jobId ?? null,
      clientMessageId: message.clientMessageId ?? null,
    },
  })
  return { id, seq }
}

/** The convo's messages up to number `untilSeq`, oldest first: at most 200, beginning with a user message. */
export async function loadHistory(db: Queryable, convoId: string, untilSeq: number): Promise<UIMessage[]> {
  const newest = await db.aiMessage.findMany({
    where: { convoId, seq: { lte: untilSeq } },
    orderBy: { seq: 'desc' },
    take: HISTORY_LIMIT,
  })
  const messages = newest.toReversed().map(toUiMessage)
  const firstUser = messages.findIndex((message) => message.role === 'user')
  return firstUser === -1 ? [] : messages.slice(firstUser)
}

export async function loadMessages(db: Queryable, where: Prisma.AiMessageWhereInput): Promise<UIMessage[]> {
  const rows = await db.aiMessage.findMany({ where, orderBy: { seq: 'asc' }, take: 1_000 })
  return rows.map(toUiMessage)
}

/** A job's messages: the one that it answers, what was said to it while it ran, and its answer. */
export async function loadJobMessages(
  db: Statements,
  job: { id: string; convoId: string; inputSeq: number },
): Promise<UIMessage[]> {
  const rows = await db.$queryRaw<AiMessage[]>(sql`
    select * from "offshoot"."AiMessage"
    where "convoId" = ${job.convoId} and ("seq" = ${job.inputSeq} or "jobId" = ${job.id}) order by "seq" limit 1000`)
  return rows.map(toUiMessage)
}

export type JobWithMessages = AgentJob & { messages: UIMessage[] }

/** A job and its messages, as they stand at one moment. */
export async function findJobWithMessages(db: Statements, jobId: string): Promise<JobWithMessages | null> {
  const [row] = await db.$queryRaw<(AgentJob & { messages: StoredMessage[] })[]>(sql`
    select j.*, (
      select coalesce(json_agg(m order by m."seq"), '[]') from (
        select "id", "seq", "role", "parts", "metadata", "clientMessageId" from "offshoot"."AiMessage"
        where "convoId" = j."convoId" and ("seq" = j."inputSeq" or "jobId" = j."id") order by "seq" limit 1000
      ) m
    ) as "messages"
    from "offshoot"."AgentJob" j where j."id" = ${jobId}`)
  return row === undefined ? null : { ...row, messages: row.messages.map(toUiMessage) }
}

type StoredMessage = Pick<AiMessage, 'id' | 'role' | 'parts' | 'metadata' | 'clientMessageId'>

export function toUiMessage(row: StoredMessage): UIMessage {
  return {
    id: row.clientMessageId ?? row.id,
    role: row.role,
    // Written by `appendMessage` from a UIMessage's parts.
    parts: decodeStored(row.parts) as UIMessage['parts'],
    ...(row.metadata === null ? {} : { metadata: decodeStored(row.metadata) }),
  }
}

/** The job that is live in a convo as its turn, if any. */
export async function findLiveTurn(
  db: Queryable,
  convoId: string,
): Promise<{ id: string; rootJobId: string } | undefined> {
  const rows = await db.$queryRaw<{ id: string; rootJobId: string }[]>(sql`
    select "id", "rootJobId" from "offshoot"."AgentJob"
    where "convoId" = ${convoId} and "depth" = 0 and "state" in ('pending', 'running') limit 1`)
  return rows[0]
}
