// An operator sends a dead letter again: an outbox entry that was given up. It goes out with what it held from the
// beginning, a completion event with the same id, so that whoever got it after all knows it again.
import type { OutboxEntry } from '../db/outbox.ts'
import { reviveDeadLetter } from '../db/outbox.ts'
import type { Runtime } from '../runtime.ts'
import { refuse, type Refusal } from './prepare-spawn.ts'
import { lockTree, transact } from './transact.ts'

export type ResendAnswer =
  | { kind: 'resent'; entry: Pick<OutboxEntry, 'id' | 'jobId' | 'kind' | 'key'> }
  /** It is told already, or still on its way. */
  | { kind: 'refused'; refusal: Refusal }
  | { kind: 'not_found' }

/** For admins: who may is the caller's to ask. The history of the job says who did. */
export async function resendDeadLetter(
  runtime: Pick<Runtime, 'database' | 'outbox' | 'signals' | 'metrics'>,
  id: bigint,
  actorId: string,
): Promise<ResendAnswer> {
  const found = await runtime.database.outbox.findUnique({ where: { id } })
  if (found === null) return { kind: 'not_found' }
  const job = await runtime.database.agentJob.findUnique({ where: { id: found.jobId }, select: { rootJobId: true } })
  if (job === null) return { kind: 'not_found' }
  const entry = await transact(runtime, async (tx) => {
    // Retention removes a tree with its outbox and its histories under this lock.
    await lockTree(tx, job.rootJobId)
    const revived = await reviveDeadLetter(tx.db, id)
    if (revived === null) return null
    tx.record({
      jobId: revived.jobId,
      kind: 'resent',
      actorId,
      data: { kind: revived.kind, triesBefore: found.attempts },
    })
    return revived
  })
  if (entry !== null) {
    runtime.outbox.dispatch([entry])
    return { kind: 'resent', entry }
  }
  const now = await runtime.database.outbox.findUnique({ where: { id } })
  if (now === null) return { kind: 'not_found' }
  return { kind: 'refused', refusal: refuse('invalid_request', whyNot(now)) }
}

function whyNot({ doneAt, attempts }: { doneAt: Date | null; attempts: number }): string {
  return doneAt === null
    ? `The entry was not given up: it is being sent, after ${attempts} tries that failed. Only a dead letter can be sent again.`
    : `The entry was told at ${doneAt.toISOString()}. There is nothing to send again.`
}
