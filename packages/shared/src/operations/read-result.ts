// Reading the rest of what was shown in part. Whose it is decides the row of the job that it belongs to, never the reader.
import type { ReadResultInput, ResultPage } from '../contracts/read-result.ts'
import { findBlobOwner, readBlobPage, readJobResultPage } from '../db/blobs.ts'
import { HISTORY_LIMIT } from '../db/convos.ts'
import type { Prisma } from '../db/generated/client.ts'
import { storedText } from '../db/stored-value.ts'
import type { Runtime } from '../runtime.ts'
import { type JobReader, readableJobs } from './readable-jobs.ts'

/** A page of a tool's result or of a sub-agent's; null when there is none, or when it is not the reader's. */
export async function readResult(
  { database }: Pick<Runtime, 'database'>,
  reader: JobReader,
  input: ReadResultInput,
): Promise<ResultPage | null> {
  const ref = storedText(input.ref)
  const owner = await findBlobOwner(database, ref)
  const readable = await database.agentJob.count({
    where: { AND: [{ id: owner ?? ref }, await jobsWithReadableResults(database, reader)] },
  })
  if (readable === 0) return null
  return owner === null ? readJobResultPage(database, ref, input) : readBlobPage(database, ref, input)
}

/** A page of what one job kept: of one of its tools' results, or of its own when `ref` is the job's id. */
export async function readResultOfJob(
  { database }: Pick<Runtime, 'database'>,
  jobId: string,
  input: ReadResultInput,
): Promise<ResultPage | null> {
  const ref = storedText(input.ref)
  if (ref === jobId) return readJobResultPage(database, jobId, input)
  return (await findBlobOwner(database, ref)) === jobId ? readBlobPage(database, ref, input) : null
}

/**
 * Besides the jobs that it may see, a running job reads what it kept itself; and a turn what the turns before it in the
 * same convo kept, which its history shows in part.
 */
async function jobsWithReadableResults(
  database: Runtime['database'],
  reader: JobReader,
): Promise<Prisma.AgentJobWhereInput> {
  if (!('runningJobId' in reader)) return readableJobs(reader)
  const running = await database.agentJob.findUnique({
    where: { id: reader.runningJobId },
    select: { convoId: true, ownerId: true },
  })
  if (running === null) return { id: { in: [] } }
  const turns = await database.agentJob.findMany({
    where: running,
    select: { id: true },
    orderBy: { id: 'desc' },
    take: HISTORY_LIMIT,
  })
  const ids = turns.map(({ id }) => id)
  return { OR: [{ id: { in: ids } }, { ancestorIds: { hasSome: ids } }] }
}
