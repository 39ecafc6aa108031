// Waiting for a job's end from outside a worker: a signal wakes, the row decides. It is looked at every 5 seconds
// anyway, every second while Redis is away.
import { isTerminal } from '../contracts/job-state.ts'
import { type AgentJob, findJob } from '../db/agent-jobs.ts'
import type { Runtime } from '../runtime.ts'
import { createWaker } from '../waker.ts'

const LOOK_EVERY_MS = 5_000
const LOOK_EVERY_MS_WITHOUT_REDIS = 1_000

/**
 * Resolves with the job's row when it has ended, or as it stands when `limitMs` is over or `signal` is aborted; null
 * when there is no such job.
 */
export async function waitForAgent(
  runtime: Pick<Runtime, 'database' | 'signals'>,
  jobId: string,
  options: { limitMs?: number; signal?: AbortSignal } = {},
): Promise<AgentJob | null> {
  const { database, signals } = runtime
  const until = options.limitMs === undefined ? Infinity : performance.now() + options.limitMs
  const waker = createWaker()
  const unsubscribe = await signals.subscribe(`job:${jobId}`, (message) => {
    if (message === 'ended') waker.wake()
  })
  options.signal?.addEventListener('abort', waker.wake)
  try {
    for (;;) {
      const job = await findJob(database.direct, jobId)
      const leftMs = until - performance.now()
      if (job === null || isTerminal(job.state) || leftMs <= 0 || options.signal?.aborted === true) return job
      await waker.pause(Math.min(leftMs, signals.isReachable() ? LOOK_EVERY_MS : LOOK_EVERY_MS_WITHOUT_REDIS))
    }
  } finally {
    options.signal?.removeEventListener('abort', waker.wake)
    unsubscribe()
  }
}
