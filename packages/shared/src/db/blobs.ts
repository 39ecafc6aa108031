// Pages of texts that are kept whole and shown in part: tools' results in Blob, a sub-agent's own in its row. Counted in
// characters (code points), by Postgres, so that a large text never comes into the process whole.
import type { ResultPage } from '../contracts/read-result.ts'
import { type Queryable, type Sql, sql } from './database.ts'

export interface PageOf {
  /** Characters to skip. */
  offset: number
  /** Characters at most. */
  length: number
}

/** The job whose tool's result this is, or null. */
export async function findBlobOwner(db: Queryable, ref: string): Promise<string | null> {
  const blob = await db.blob.findUnique({ where: { id: ref }, select: { jobId: true } })
  return blob?.jobId ?? null
}

export async function readBlobPage(db: Queryable, ref: string, page: PageOf): Promise<ResultPage | null> {
  const text = sql`select convert_from("bytes", 'UTF8') as "whole" from "offshoot"."Blob" where "id" = ${ref}`
  return readPage(db, ref, text, page)
}

/** A page of a job's result; null while it has none. */
export async function readJobResultPage(db: Queryable, jobId: string, page: PageOf): Promise<ResultPage | null> {
  const text = sql`select "result" as "whole" from "offshoot"."AgentJob" where "id" = ${jobId} and "result" is not null`
  return readPage(db, jobId, text, page)
}

async function readPage(db: Queryable, ref: string, text: Sql, { offset, length }: PageOf): Promise<ResultPage | null> {
  const rows = await db.$queryRaw<{ characters: number; text: string }[]>(sql`
    select char_length("whole") as "characters", substr("whole", ${offset + 1}::int, ${length}::int) as "text"
    from (${text}) kept`)
  const row = rows[0]
  return row === undefined ? null : pageOf(ref, row, { offset, length })
}

function pageOf(
  ref: string,
  { characters, text }: { characters: number; text: string },
  { offset, length }: PageOf,
): ResultPage {
  const nextOffset = offset + length
  return { ref, characters, offset, text, ...(nextOffset < characters ? { nextOffset } : {}) }
}
