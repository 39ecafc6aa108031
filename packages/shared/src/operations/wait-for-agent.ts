// Waiting for a job's end from outside a worker: a signal wakes, the row decides. It is looked at every 5 seconds
// anyway, every second while Redis is away.
import { isTerminal } from '../contracts/job-state.ts'
import { type AgentJob, findJob } from '../db/agent-jobs.ts'
import { findJobWithMessages, type JobWithMessages } from '../db/convos.ts'
import type { Statements } from '../db/direct-sql.ts'
import type { Runtime } from '../runtime.ts'
import { createWaker } from '../waker.ts'

const LOOK_EVERY_MS = 5_000
const LOOK_EVERY_MS_WITHOUT_REDIS = 1_000

interface WaitOptions {
  limitMs?: number
  signal?: AbortSignal
}

type Waiting = Pick<Runtime, 'database' | 'signals'>

/**
 * Resolves with the job's row when it has ended, or as it stands when `limitMs` is over or `signal` is aborted; null
 * when there is no such job.
 */
export async function waitForAgent(runtime: Waiting, jobId: string, options?: WaitOptions): Promise<AgentJob | null> {
  return waitForRow(runtime, jobId, findJob, options)
}

/** The same, with the job's messages. */
export async function waitForOutcome(
  runtime: Waiting,
  jobId: string,
  options?: WaitOptions,
): Promise<JobWithMessages | null> {
  return waitForRow(runtime, jobId, findJobWithMessages, options)
}

async function waitForRow<Job extends AgentJob>(
  runtime: Waiting,
  jobId: string,
  find: (db: Statements, jobId: string) => Promise<Job | null>,
  options: WaitOptions = {},
): Promise<Job | null> {
  const { database, signals } = runtime
  const until = options.limitMs === undefined ? Infinity : performance.now() + options.limitMs
  const waker = createWaker()
  const unsubscribe = await signals.subscribe(`job:${jobId}`, (message) => {
    if (message === 'ended') waker.wake()
  })
  options.signal?.addEventListener('abort', waker.wake)
  try {
    for (;;) {
      const job = await find(database.direct, jobId)
      const leftMs = until - performance.now()
      if (job === null || isTerminal(job.state) || leftMs <= 0 || options.signal?.aborted === true) return job
      await waker.pause(Math.min(leftMs, signals.isReachable() ? LOOK_EVERY_MS : LOOK_EVERY_MS_WITHOUT_REDIS))
    }
  } finally {
    options.signal?.removeEventListener('abort', waker.wake)
    unsubscribe()
  }
}
