// The runner `inline`: a host's own process runs jobs, without BullMQ. Claim, journal, heartbeat and repair are those of a
// worker; a job here ends with its process, since nobody else has it.
import { findPendingInlineJobs } from '@offshoot/shared/db/inline-jobs'
import { deliveryOf } from '@offshoot/shared/operations/deliver'
import { endInlineJobs } from '@offshoot/shared/operations/end-inline-jobs'
import type { InlineRunnerFactory } from '@offshoot/shared/runtime'
import { openJobProcess } from './job-process.ts'
import { processDelivery } from './process-delivery.ts'

/** For `createOffshoot({ inlineRunner: createInlineRunner })`. Runs up to WORKER_CONCURRENCY jobs at a time. */
export const createInlineRunner: InlineRunnerFactory = async (runtime) => {
  const { config, database, logger, inline: queue } = runtime
  if (queue === undefined) throw new Error('The inline runner needs a runtime that was opened with `runsInline`.')
  const jobProcess = await openJobProcess(runtime, { lanes: [], onHeartbeat: takeUntold })
  queue.start({
    id: jobProcess.workerId,
    concurrency: config.WORKER_CONCURRENCY,
    run: (delivery) => processDelivery(jobProcess, delivery.data),
  })

  /** A wake that another process has made reaches this one here; as does one that got lost. */
  async function takeUntold(workerId: string): Promise<void> {
    for (const job of await findPendingInlineJobs(database, workerId))
      await queue?.add(deliveryOf(job, job.attempt === 0 ? 'new' : 'wake'))
  }

  return {
    close: () =>
      jobProcess.drain(queue.stop, async () => {
        try {
          const ended = await endInlineJobs(runtime, jobProcess.workerId())
          if (ended > 0) logger.warn({ jobs: ended }, 'inline jobs ended with their process')
        } catch (error) {
          logger.error({ error }, 'inline jobs could not be ended; a reconciler ends them as those of a lost process')
        }
      }),
  }
}
