// What BullMQ calls for a delivery: our outcome in BullMQ's words, and BullMQ's signal as a reason to look.
import { comesAgain, failedForGood } from '@offshoot/shared/queue/queue-errors'
import type { Job } from 'bullmq'
import { type DeliveryDependencies, type DeliveryResult, processDelivery } from './process-delivery.ts'

export type Processor = (job: Job, token: string | undefined, signal: AbortSignal | undefined) => Promise<string>

const UNEXPECTED: DeliveryResult = { outcome: 'failed', words: 'unexpected error, see the log of the worker' }

/**
 * BullMQ hands its signal only to a function that declares three parameters: nothing around this one may hide them. The
 * signal (`worker.cancelJob`) is no abort, since it says neither who wants the end nor why, and dies with this process: it
 * makes the worker ask Postgres at once. A run ends when the record says so.
 */
export function createProcessor(dependencies: DeliveryDependencies): Processor {
  return async (job, token, signal) => {
    const look = () => dependencies.runningJobs.lookSoon()
    signal?.addEventListener('abort', look, { once: true })
    const { words, outcome, againAfterMs } = await processDelivery(dependencies, job.data).catch((error: unknown) => {
      dependencies.runtime.logger.error({ delivery: job.id, error }, 'a delivery ended with an unexpected error')
      // Redis and the dashboard keep what is thrown here; errors of databases repeat what was to be written.
      return UNEXPECTED
    })
    if (againAfterMs !== undefined) {
      await job.moveToDelayed(Date.now() + againAfterMs, token)
      throw comesAgain(words)
    }
    if (outcome === 'failed') throw failedForGood(words)
    return words
  }
}
