// The reconciler repairs what no signal repaired. It runs in every process that runs jobs and in every API, one of them
// active at a time by a lease, so that limits hold with no worker at all. Each round asks Postgres for what is overdue; every
// repair is one of the ordinary, guarded operations, so that two reconcilers at once would do no harm. What is found of a
// job is a line in its history (contracts/finding.ts). A process without Redis has a lease of its own and repairs inline
// jobs only: what it does for others it could tell nobody, and it must not keep those from it who can.
import { hasRedis } from '../config.ts'
import type { JobFinding } from '../contracts/finding.ts'
import type { Reason } from '../contracts/reason.ts'
import { type AgentJob, makePending } from '../db/agent-jobs.ts'
import { type Database, type Sql, sql } from '../db/database.ts'
import { isLockTimeout, isTransientDatabaseError } from '../db/database-errors.ts'
import { addUpJobTally } from '../db/job-tally.ts'
import { dropLease, takeLease } from '../db/leases.ts'
import { deleteWorker, lookAtWorkers, type WorkerSight } from '../db/workers.ts'
import type { Runtime } from '../runtime.ts'
import { createWaker } from '../waker.ts'
import { tellDelivery } from './deliver.ts'
import { type AbortWish, finishInTransaction, unheldEnding, wishOf } from './finish-agent.ts'
import { handBack, handBackTogether } from './hand-back.ts'
import { ENTRIES_A_ROUND, removeOldTrees, removeToldEntries, TREES_A_ROUND } from './remove-old.ts'
import { lockTree, transact, type TransactRuntime, type Tx } from './transact.ts'
import { wakeAgent } from './wake-agent.ts'

const LEASE = 'reconciler'
const INLINE_LEASE = 'reconciler-inline'
const LEASE_MS = 5_000
const ROUND_EVERY_MS = 500
/** A delivery gets this long before Redis is asked about it. */
const DELIVERY_GRACE_MS = 5_000
const BATCH = 500
/** Retention, and adding up the tally of jobs, are in no hurry. */
const TIDY_EVERY_MS = 60_000
/** What somebody holds for longer is left to the next round: it keeps no other job from its repair. */
const LOCK_LIMIT_MS = 500
/** After Postgres came back nobody is declared lost for this long: workers reconnect, too. */
const CALM_AFTER_OUTAGE_MS = 5_000

/** A runtime whose transactions do not wait long for a lock. */
type Repairing = Runtime & Required<Pick<TransactRuntime, 'lockLimitMs'>>

export interface Reconciler {
  stop(): Promise<void>
}

/** Starts the rounds. `holder` names this process in the lease. */
export function startReconciler(runtime: Runtime, options: { holder: string }): Reconciler {
  const { database, logger, metrics } = runtime
  const lease = repairsAll(runtime) ? LEASE : INLINE_LEASE
  const repairing: Repairing = { ...runtime, lockLimitMs: LOCK_LIMIT_MS }
  const lostWorkers = lostWorkerWatch(repairing)
  const waker = createWaker()
  const stopping = new AbortController()
  let calmUntil = 0
  let tidiedAt = -Infinity

  async function round(): Promise<void> {
    if (!(await takeLease(database, lease, options.holder, LEASE_MS))) return
    if (performance.now() >= calmUntil) await lostWorkers()
    for (const repair of [endUnheldJobs, endStuckRuns, wakeOverdueWaits, redeliverLostDeliveries])
      await repair(repairing)
    await runtime.outbox.dispatchDue()
    metrics.countRound('done')
    if (performance.now() - tidiedAt < TIDY_EVERY_MS) return
    tidiedAt = performance.now()
    const trees = await removeOldTrees(repairing, runtime.config.RETENTION_DAYS)
    const entries = await removeToldEntries(database)
    await addUpJobTally(database)
    // There is more than one round removes: the next one goes on with it.
    if (trees === TREES_A_ROUND || entries === ENTRIES_A_ROUND) tidiedAt = -Infinity
  }

  async function run(): Promise<void> {
    while (!stopping.signal.aborted) {
      try {
        await round()
      } catch (error) {
        calmUntil = performance.now() + CALM_AFTER_OUTAGE_MS
        metrics.countRound('failed')
        logger.warn({ error }, 'a round of the reconciler failed; the next one follows')
      }
      await waker.pause(ROUND_EVERY_MS)
    }
  }

  const running = run()
  return {
    async stop() {
      stopping.abort()
      waker.wake()
      await running
      await dropLease(database, lease, options.holder).catch(() => undefined)
    },
  }
}

function repairsAll({ config }: Runtime): boolean {
  return hasRedis(config)
}

/** The jobs that are this process's to repair. */
function scopeOf(runtime: Runtime): Sql {
  return repairsAll(runtime) ? sql`true` : sql`"runner" = 'inline'`
}

/**
 * A worker is lost when its lock is free in two looks (a round apart) and its row was not seen in between, or when it
 * was not seen for WORKER_LOCK_MS. Its jobs go to others at once; inline ones end.
 */
function lostWorkerWatch(runtime: Repairing): () => Promise<void> {
  const { database, config, logger, metrics } = runtime
  let before = new Map<string, WorkerSight>()
  return async () => {
    const sights = await lookAtWorkers(database, config.WORKER_LOCK_MS)
    const lost = sights.filter((sight) => {
      if (!sight.inline && !repairsAll(runtime)) return false
      const earlier = before.get(sight.id)
      const lockGone =
        !sight.lockHeld &&
        earlier !== undefined &&
        !earlier.lockHeld &&
        earlier.seenAt.getTime() === sight.seenAt.getTime()
      return lockGone || sight.overdue
    })
    before = new Map(sights.map((sight) => [sight.id, sight]))
    for (const worker of lost) {
      const jobs = await jobsOf(database, worker.id)
      logger.warn(
        { workerId: worker.id, jobs: jobs.length, overdue: worker.overdue },
        'worker lost; its jobs go to others, or end with it',
      )
      await giveBack(runtime, jobs, worker.id)
      await deleteWorker(database, worker.id)
      metrics.countFindings('lost_worker', 1)
    }
    await repairAll(runtime, await jobsOfUnknownWorkers(runtime), (job) =>
      handBack(runtime, job, { lostWorkerId: job.workerId, claimedAfterLoss: true }, 'worker-lost'),
    )
  }
}

/** All together, then each that is left by itself. */
async function giveBack(runtime: Repairing, jobs: readonly HeldJobRef[], workerId: string): Promise<void> {
  try {
    await handBackTogether(runtime, jobs, workerId)
  } catch (error) {
    if (isTransientDatabaseError(error) && !isLockTimeout(error)) throw error
    runtime.logger.error({ workerId, error }, 'the jobs of a lost worker could not be given back together')
  }
  await repairAll(runtime, await jobsOf(runtime.database, workerId), (job) =>
    handBack(runtime, job, { lostWorkerId: workerId }, 'worker-lost'),
  )
}

type HeldJobRef = Pick<AgentJob, 'id' | 'rootJobId'>

async function jobsOf(database: Database, workerId: string): Promise<HeldJobRef[]> {
  return database.agentJob.findMany({
    where: { workerId, state: 'running', claimToken: { not: null } },
    select: { id: true, rootJobId: true },
    orderBy: { depth: 'desc' },
  })
}

/** What a worker without a row has claimed: it was declared lost, and claims until its next heartbeat tells it so. */
async function jobsOfUnknownWorkers(runtime: Runtime): Promise<{ id: string; rootJobId: string; workerId: string }[]> {
  return runtime.database.$queryRaw(sql`
    select "id", "rootJobId", "workerId" from "offshoot"."AgentJob"
    where "state" = 'running' and "claimToken" is not null and ${WORKER_IS_GONE} and ${scopeOf(runtime)}
    order by "depth" desc limit ${BATCH}`)
}

const WORKER_IS_GONE = sql`not exists (select 1 from "offshoot"."Worker" w where w."id" = "AgentJob"."workerId")`

/** A retry begins the deadline anew, and with it the queue time. */
const QUEUED_AT = sql`case when "generation" = 1 then "createdAt" else "deadlineAt" - make_interval(secs => "timeoutMs" / 1000.0) end`

/**
 * Ends jobs that no worker holds and that have an abort wish, are past their deadline or queue-time limit, or could only
 * have gone on in a process that is gone.
 */
async function endUnheldJobs(runtime: Repairing): Promise<void> {
  const due = sql`"state" in ('pending', 'running') and "claimToken" is null and (
    "abortRequestedAt" is not null or "deadlineAt" <= clock_timestamp() or ("runner" = 'inline' and ${WORKER_IS_GONE})
    or ("attempt" = 0 and "state" = 'pending'
      and ${QUEUED_AT} <= clock_timestamp() - make_interval(secs => coalesce("queueTimeoutMs", ${runtime.config.JOB_QUEUE_TIMEOUT_MS}) / 1000.0)))`
  await repairEach(runtime, due, async (tx, { id }) => {
    const [job] = await tx.db.$queryRaw<(AgentJob & { due: Reason; finding: JobFinding })[]>(sql`
      select *, case when "abortRequestedAt" is not null then coalesce("abortReason", 'aborted_by_user')
        when "deadlineAt" <= clock_timestamp() then 'timeout_total'
        when "runner" = 'inline' and ${WORKER_IS_GONE} then 'worker_lost' else 'timeout_queue' end as "due",
        case when "abortRequestedAt" is not null then 'unheld_abort'
        when "deadlineAt" <= clock_timestamp() then 'deadline'
        when "runner" = 'inline' and ${WORKER_IS_GONE} then 'job_of_lost_worker' else 'queue_time' end as "finding"
      from "offshoot"."AgentJob" where "id" = ${id} and ${due}`)
    if (job === undefined) return
    await finishInTransaction(tx, job.id, {
      guard: 'unclaimed',
      ending: await unheldEnding(tx.db, job, { reason: job.due, text: job.abortText }),
      finding: job.finding,
      ...(job.abortRequestedBy === null ? {} : { actorId: job.abortRequestedBy }),
    })
  })
}

/**
 * Takes from its worker, and ends, what that could not end: a job that had to end a lock's length ago. A worker whose
 * heartbeat is good obeys a wish or a deadline within seconds, unless its run hangs where nothing stops it.
 */
async function endStuckRuns(runtime: Repairing): Promise<void> {
  const aLockAgo = sql`clock_timestamp() - make_interval(secs => ${runtime.config.WORKER_LOCK_MS / 1000})`
  const stuck = sql`"state" = 'running' and "workerId" is not null and "claimToken" is not null
    and ("abortRequestedAt" <= ${aLockAgo} or "deadlineAt" <= ${aLockAgo})`
  await repairEach(runtime, stuck, async (tx, { id }) => {
    const [job] = await tx.db.$queryRaw<(AgentJob & { claimToken: string })[]>(
      sql`select * from "offshoot"."AgentJob" where "id" = ${id} and ${stuck}`,
    )
    // Without its claim the run that hangs can write nothing more, whatever it comes to.
    if (job === undefined || (await makePending(tx.db, id, { token: job.claimToken })) === null) return
    const wish = job.abortRequestedAt === null ? TIMEOUT : wishOf(job)
    await finishInTransaction(tx, id, {
      guard: 'unclaimed',
      ending: await unheldEnding(tx.db, job, wish),
      finding: 'stuck_run',
      ...(wish.by === null ? {} : { actorId: wish.by }),
    })
    runtime.logger.warn({ jobId: id, workerId: job.workerId }, 'a run that did not end was taken from its worker')
  })
}

const TIMEOUT: AbortWish = { by: null, reason: 'timeout_total', text: null }

/** Wakes jobs whose wait is over: its time has come, or no child that it waits for is live. */
async function wakeOverdueWaits(runtime: Repairing): Promise<void> {
  const over = sql`"state" = 'running' and "claimToken" is null and "waitingOn" is not null and (
    "waitUntil" <= clock_timestamp()
    or ("waitingOn" = 'children' and not exists (
      select 1 from "offshoot"."AgentJob" c
      where c."parentJobId" = "AgentJob"."id" and c."mode" = 'sync' and c."state" in ('pending', 'running'))))`
  await repairEach(runtime, over, async (tx, { id }) => {
    const [job] = await tx.db.$queryRaw<{ finding: JobFinding }[]>(sql`
      select case when "waitUntil" is null or "waitUntil" > clock_timestamp() then 'lost_wake'
        when "waitingOn" = 'retry' then 'retry_due' else 'overdue_wait' end as "finding"
      from "offshoot"."AgentJob" where "id" = ${id} and ${over}`)
    if (job !== undefined) await wakeAgent(tx, id, 'the reconciler found the wait over', job.finding)
  })
}

/**
 * Repairs the jobs for which `condition` holds, children before their parents, each in a transaction of its own under the
 * tree's lock: what was seen before the lock must be looked at again.
 */
async function repairEach(
  runtime: Repairing,
  condition: Sql,
  repair: (tx: Tx, job: { id: string }) => Promise<void>,
): Promise<void> {
  const jobs = await runtime.database.$queryRaw<{ id: string; rootJobId: string }[]>(
    sql`select "id", "rootJobId" from "offshoot"."AgentJob" where (${condition}) and ${scopeOf(runtime)} order by "depth" desc limit ${BATCH}`,
  )
  await repairAll(runtime, jobs, (job) =>
    transact(runtime, async (tx) => {
      await lockTree(tx, job.rootJobId)
      await repair(tx, job)
    }),
  )
}

/**
 * Repairs jobs, those of one tree in their order (they would wait for its lock in any case), some trees at a time: the last
 * of a lost worker's hundred jobs shall not wait for a hundred transactions, and what else the process does keeps half of
 * the connections.
 */
async function repairAll<Job extends { id: string; rootJobId: string }>(
  runtime: Repairing,
  jobs: readonly Job[],
  repair: (job: Job) => Promise<unknown>,
): Promise<void> {
  const trees = Map.groupBy(jobs, ({ rootJobId }) => rootJobId).values()
  const repairSome = async () => {
    for (const tree of trees)
      for (const job of tree) if ((await repairOne(runtime, job.id, () => repair(job))) === 'held') break
  }
  await Promise.all(Array.from({ length: Math.ceil(runtime.config.DATABASE_POOL_SIZE / 2) }, repairSome))
}

/** A job that cannot be repaired keeps no other from it. `held`: somebody else holds what the repair has to lock. */
async function repairOne(
  { logger }: Runtime,
  jobId: string,
  repair: () => Promise<unknown>,
): Promise<'tried' | 'held'> {
  try {
    await repair()
  } catch (error) {
    if (isLockTimeout(error)) {
      logger.info({ jobId }, 'somebody holds a job that is to be repaired; the next round tries again')
      return 'held'
    }
    if (isTransientDatabaseError(error)) throw error
    logger.error({ jobId, error }, 'a job could not be repaired; the next round tries again')
  }
  return 'tried'
}

/** Since when it is known of a pending job's delivery that it was there. */
const KNOWN_AT = sql`greatest("deliveredAt", "askedAt")`

/**
 * Asks Redis about the deliveries of pending jobs; absent and finished ones are made anew, with the next number, and so
 * are those that a worker had taken and not claimed when it was lost: BullMQ would find them only after a minute.
 */
async function redeliverLostDeliveries(runtime: Repairing): Promise<void> {
  const { database, deliveries, signals, logger } = runtime
  if (!repairsAll(runtime) || !signals.pulse.isOk()) return
  const pending = await database.$queryRaw<AgentJob[]>(sql`
    select * from "offshoot"."AgentJob"
    where "state" = 'pending' and "runner" = 'queue' and ${KNOWN_AT} < clock_timestamp() - make_interval(secs => ${DELIVERY_GRACE_MS / 1000})
    order by ${KNOWN_AT} limit ${BATCH}`)
  if (pending.length === 0) return
  const workers = new Set((await database.worker.findMany({ select: { id: true } })).map(({ id }) => id))
  let underway: boolean[]
  try {
    underway = await Promise.all(
      pending.map((job) => deliveries.isUnderway(job.lane, job.id, job.deliverySeq, workers)),
    )
  } catch (error) {
    logger.warn({ error }, 'Redis did not say which deliveries it has')
    return
  }
  const asked = pending.filter((_, at) => underway[at]).map((job) => job.id)
  if (asked.length > 0) {
    await database.$executeRaw(
      sql`update "offshoot"."AgentJob" set "askedAt" = clock_timestamp() where "id" = any(${asked}::text[]) and "state" = 'pending'`,
    )
  }
  const lost = pending.filter((_, at) => !underway[at])
  await repairAll(runtime, lost, (job) => {
    logger.info({ jobId: job.id, deliverySeq: job.deliverySeq }, 'delivery lost; delivering again')
    return transact(runtime, async (tx) => {
      const changed = await tx.db.$queryRaw<AgentJob[]>(sql`
        update "offshoot"."AgentJob" set "deliverySeq" = "deliverySeq" + 1, "askedAt" = clock_timestamp()
        where "id" = ${job.id} and "state" = 'pending' and "deliverySeq" = ${job.deliverySeq} returning *`)
      const again = changed[0]
      if (again === undefined) return
      const data = { deliverySeq: again.deliverySeq }
      tx.record({ jobId: job.id, kind: 'redelivered', finding: 'lost_delivery', data })
      tellDelivery(tx, again, again.attempt === 0 ? 'new' : 'wake')
    })
  })
}
