// Claims that stand in this worker's name and that no run here knows: the answer to a claim was lost, or a run broke off
// without giving its claim up. While the worker lives nobody else would take them.
import type { HeldJob } from '@offshoot/shared/db/workers'
import { handBack } from '@offshoot/shared/operations/hand-back'
import type { Runtime } from '@offshoot/shared/runtime'

export interface StrayClaims {
  /** Gives back the claims that `isRunning` has not known for two heartbeats: a claim that was just made is no stray. */
  look(held: readonly HeldJob[], isRunning: (job: HeldJob) => boolean): Promise<void>
}

/** A claim whose tree somebody holds for longer is given back at a later heartbeat: it keeps no other from it. */
const LOCK_LIMIT_MS = 500

export function watchStrayClaims(runtime: Runtime): StrayClaims {
  const repairing = { ...runtime, lockLimitMs: LOCK_LIMIT_MS }
  const graceMs = 2 * runtime.config.WORKER_HEARTBEAT_MS
  let seenSince = new Map<string, number>()
  return {
    async look(held, isRunning) {
      const now = performance.now()
      const before = seenSince
      seenSince = new Map()
      for (const job of held) {
        if (job.claimToken === null || isRunning(job)) continue
        const since = before.get(job.claimToken) ?? now
        seenSince.set(job.claimToken, since)
        if (now - since < graceMs) continue
        runtime.logger.warn({ jobId: job.id }, 'a claim of this worker that no run knows goes back')
        await handBack(repairing, job, { token: job.claimToken }, 'handed-back').catch((error: unknown) =>
          runtime.logger.warn({ jobId: job.id, error }, 'it could not be given back; a later heartbeat tries again'),
        )
      }
    },
  }
}
