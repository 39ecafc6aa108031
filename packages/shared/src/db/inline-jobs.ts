// The jobs of the runner `inline`: each belongs to one worker, in whose process alone it runs, from its spawn to its end.
import type { AgentJob } from './generated/client.ts'
import { type Queryable, sql } from './database.ts'

/** The inline jobs of a worker that wait for a slot of its process. */
export async function findPendingInlineJobs(db: Queryable, workerId: string): Promise<AgentJob[]> {
  return db.agentJob.findMany({ where: { runner: 'inline', workerId, state: 'pending' } })
}

/** The inline jobs of a worker that nobody holds now, children before their parents. */
export async function findUnheldInlineJobs(
  db: Queryable,
  workerId: string,
): Promise<Pick<AgentJob, 'id' | 'rootJobId'>[]> {
  return db.$queryRaw(sql`
    select "id", "rootJobId" from "offshoot"."AgentJob"
    where "runner" = 'inline' and "workerId" = ${workerId} and "state" in ('pending', 'running') and "claimToken" is null
    order by "depth" desc`)
}
