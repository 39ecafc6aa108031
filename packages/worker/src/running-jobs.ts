// The jobs that this process runs now, by job id, and the one heartbeat for all of them: it says that the worker is
// alive, and learns which jobs somebody wants to end and which are not ours any more.
import type { Logger } from '@offshoot/shared/logger'
import type { Runtime } from '@offshoot/shared/runtime'
import type { Database } from '@offshoot/shared/db/database'
import { heartbeat, type HeldJob } from '@offshoot/shared/db/workers'
import type { Claim } from '@offshoot/shared/db/agent-jobs'
import type { RunStop, StopSwitch } from './run-stop.ts'
import { watchStrayClaims } from './stray-claims.ts'

export interface RunningJobs {
  add(claim: Claim, stopSwitch: StopSwitch): () => void
  count(): number
  /** False while others may take this worker for lost, or have: what it claimed then it would not keep. */
  isSeen(): boolean
  /** Looks at once, for a signal or a doubt; several calls become one look. */
  lookSoon(): void
  /** Stops every run for this reason. */
  stopAll(reason: RunStop): void
  close(): Promise<void>
}

export interface RunningJobsOptions {
  runtime: Runtime
  /** Of the heartbeat alone: it must not queue behind transactions that wait for a lock. */
  heartbeatDatabase: Database
  workerId: () => string
  /** The worker's row is gone: it was declared lost. Called again with each heartbeat until there is another one. */
  onDeclaredLost: () => Promise<void>
  /** Called after each good heartbeat, unless it is still at work since an earlier one. */
  onHeartbeat: () => Promise<void>
}

interface RunningJob {
  claim: Claim
  stopSwitch: StopSwitch
}

/** Intervals without a good answer after which a heartbeat counts as missed: one, and half for the answer's way. */
const MISSED_AFTER = 1.5

export async function watchRunningJobs({
  runtime,
  heartbeatDatabase,
  workerId,
  onDeclaredLost,
  onHeartbeat,
}: RunningJobsOptions): Promise<RunningJobs> {
  const { config, logger, signals, metrics } = runtime
  const running = new Map<string, RunningJob>()
  const silenceLimitMs = config.WORKER_LOCK_MS - config.WORKER_HEARTBEAT_MS
  const strays = watchStrayClaims(runtime)
  const [lookForStrays, tellHeartbeat] = [besideHeartbeats(logger), besideHeartbeats(logger)]
  /** When the last heartbeat that was answered was sent: Postgres has seen this worker since, and not before. */
  let lastGood = performance.now()
  let declaredLost = false
  let looking: Promise<void> | undefined
  let again = false
  let closed = false

  async function look(): Promise<void> {
    const before = new Map(running)
    const sentAt = performance.now()
    const held = await heartbeat(heartbeatDatabase, workerId())
    lastGood = sentAt
    declaredLost = held === null
    if (held === null) {
      stopAll({ kind: 'claim-lost', because: 'the worker was declared lost' })
      await onDeclaredLost()
      declaredLost = false
      return
    }
    obey(held, before.values())
    lookForStrays.begin(() => strays.look(held, (job) => running.get(job.id)?.claim.token === job.claimToken))
    tellHeartbeat.begin(onHeartbeat)
  }

  function lookSoon(): void {
    if (closed) return
    if (looking !== undefined) {
      again = true
      return
    }
    looking = look()
      .catch((error: unknown) => logger.warn({ error }, 'heartbeat failed'))
      .finally(() => {
        looking = undefined
        if (again) {
          again = false
          lookSoon()
        }
      })
  }

  function stopAll(reason: RunStop): void {
    for (const { stopSwitch } of running.values()) stopSwitch.stop(reason)
  }

  const unsubscribe = await signals.subscribe('workers', (message) => {
    const jobIds: unknown = JSON.parse(message)
    if (Array.isArray(jobIds) && jobIds.some((id) => running.has(String(id)))) lookSoon()
  })
  const timer = setInterval(() => {
    if (performance.now() - lastGood > MISSED_AFTER * config.WORKER_HEARTBEAT_MS) metrics.countMissedHeartbeat()
    lookSoon()
  }, config.WORKER_HEARTBEAT_MS)
  // Others may have the jobs of a worker that was silent for WORKER_LOCK_MS. Its runs stop one heartbeat before, not later.
  const stopWatching = watchSilence({
    limitMs: silenceLimitMs,
    everyMs: config.WORKER_HEARTBEAT_MS,
    lastGood: () => lastGood,
    onSilence: () => stopAll({ kind: 'claim-lost', because: `no good heartbeat for ${silenceLimitMs} ms` }),
  })

  return {
    add(claim, stopSwitch) {
      // An attempt whose claim was taken away, and has come back to this process before it noticed.
      const older = running.get(claim.jobId)
      older?.stopSwitch.stop({ kind: 'claim-lost', because: 'this process has claimed the job again' })
      running.set(claim.jobId, { claim, stopSwitch })
      return () => {
        if (running.get(claim.jobId)?.claim.token === claim.token) running.delete(claim.jobId)
      }
    },
    count: () => running.size,
    isSeen: () => !declaredLost && performance.now() - lastGood <= silenceLimitMs,
    lookSoon,
    stopAll,
    async close() {
      closed = true
      clearInterval(timer)
      stopWatching()
      unsubscribe()
      await looking
      await Promise.all([lookForStrays.ended(), tellHeartbeat.ended()])
    },
  }
}

/** Stops the runs whose claim is gone, and those that somebody wants to end. */
function obey(held: readonly HeldJob[], runs: Iterable<RunningJob>): void {
  const byId = new Map(held.map((job) => [job.id, job]))
  for (const { claim, stopSwitch } of runs) {
    const row = byId.get(claim.jobId)
    if (row?.claimToken !== claim.token)
      stopSwitch.stop({ kind: 'claim-lost', because: 'a heartbeat found another claim' })
    else if (row.abortRequested) stopSwitch.stop({ kind: 'abort-wish' })
  }
}

/** Calls `onSilence` as soon as the last good heartbeat is `limitMs` old, and then again every so often while it is. */
function watchSilence(watch: { limitMs: number; everyMs: number; lastGood: () => number; onSilence: () => void }) {
  function look(): void {
    const leftMs = watch.lastGood() + watch.limitMs - performance.now()
    if (leftMs <= 0) watch.onSilence()
    timer = setTimeout(look, leftMs > 0 ? leftMs : watch.everyMs)
  }
  let timer = setTimeout(look, watch.limitMs)
  return () => clearTimeout(timer)
}

/** Work that a heartbeat begins: it may stand behind locks and other statements, and the next heartbeat must not. */
function besideHeartbeats(logger: Logger) {
  let underway: Promise<void> | undefined
  return {
    /** Begins it, unless it is under way since an earlier heartbeat. */
    begin(work: () => Promise<void>): void {
      underway ??= work()
        .catch((error: unknown) =>
          logger.warn({ error }, 'what follows from a heartbeat failed; the next one tries again'),
        )
        .finally(() => (underway = undefined))
    },
    ended: async () => underway,
  }
}
