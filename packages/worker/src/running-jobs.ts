// The jobs that this process runs now, by job id, and the one heartbeat for all of them: it says that the worker is
// alive, and learns which jobs somebody wants to end and which are not ours any more.
import type { Logger } from '@offshoot/shared/logger'
import type { Runtime } from '@offshoot/shared/runtime'
import type { Database } from '@offshoot/shared/db/database'
import { heartbeat } from '@offshoot/shared/db/workers'
import type { Claim } from '@offshoot/shared/db/agent-jobs'
import type { RunStop, StopSwitch } from './run-stop.ts'
import { watchStrayClaims } from './stray-claims.ts'

export interface RunningJobs {
  add(claim: Claim, stopSwitch: StopSwitch): () => void
  count(): number
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
  const running = new Map<string, { claim: Claim; stopSwitch: StopSwitch }>()
  const silenceLimitMs = config.WORKER_LOCK_MS - config.WORKER_HEARTBEAT_MS
  const strays = watchStrayClaims(runtime)
  const [lookForStrays, tellHeartbeat] = [besideHeartbeats(logger), besideHeartbeats(logger)]
  let lastGood = performance.now()
  let looking: Promise<void> | undefined
  let again = false
  let closed = false

  async function look(): Promise<void> {
    const before = new Map(running)
    const held = await heartbeat(heartbeatDatabase, workerId())
    lastGood = performance.now()
    if (held === null) {
      stopAll({ kind: 'claim-lost', because: 'the worker was declared lost' })
      await onDeclaredLost()
      return
    }
    const byId = new Map(held.map((job) => [job.id, job]))
    for (const [jobId, { claim, stopSwitch }] of before) {
      const row = byId.get(jobId)
      if (row?.claimToken !== claim.token)
        stopSwitch.stop({ kind: 'claim-lost', because: 'a heartbeat found another claim' })
      else if (row.abortRequested) stopSwitch.stop({ kind: 'abort-wish' })
    }
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
    if (performance.now() - lastGood > silenceLimitMs)
      stopAll({ kind: 'claim-lost', because: `no good heartbeat for ${silenceLimitMs} ms` })
    lookSoon()
  }, config.WORKER_HEARTBEAT_MS)

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
    lookSoon,
    stopAll,
    async close() {
      closed = true
      clearInterval(timer)
      unsubscribe()
      await looking
      await Promise.all([lookForStrays.ended(), tellHeartbeat.ended()])
    },
  }
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
