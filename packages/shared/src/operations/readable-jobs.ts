// Whose job is it? The right to a job is part of every query: a foreign job and an unknown one look the same.
import type { Prisma } from '../db/generated/client.ts'

/** Who looks: a user, or a running job, which reaches exactly its own subtree. */
export type JobReader = { userId: string; admin: boolean } | { runningJobId: string }

/** The jobs that a reader may see and act on. */
export function readableJobs(reader: JobReader): Prisma.AgentJobWhereInput {
  if ('runningJobId' in reader) return { ancestorIds: { has: reader.runningJobId } }
  return reader.admin ? {} : { OR: [{ ownerId: reader.userId }, { triggeredByIds: { has: reader.userId } }] }
}
