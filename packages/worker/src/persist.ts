import { isTransientDatabaseError } from '@offshoot/shared/db/database-errors'
import type { WriteAnswer } from '@offshoot/shared/db/journal'
import type { Logger } from '@offshoot/shared/logger'
import { pause } from './pause.ts'
import type { StopSwitch } from './run-stop.ts'

/** Writes one thing to the journal. False: the claim was gone, nothing was written. */
export type Persist = (write: () => Promise<WriteAnswer>) => Promise<boolean>

const FIRST_PAUSE_MS = 50
const LONGEST_PAUSE_MS = 2_000

interface PersistOptions {
  stopSwitch: StopSwitch
  logger: Logger
  jobId: string
}

/**
 * Repeats a write until Postgres takes it: what was paid for is never thrown away for a failed write. An answer that the
 * claim is gone, or that somebody wants an end, stops the run; a run that is stopped writes nothing more.
 */
export function createPersist(options: PersistOptions): Persist {
  const { stopSwitch } = options
  return async (write) => {
    const answer = await untilPostgresAnswers(write, options)
    if (!answer.held) stopSwitch.stop({ kind: 'claim-lost', because: 'a write found another claim' })
    else if (answer.abortRequested) stopSwitch.stop({ kind: 'abort-wish' })
    return answer.held
  }
}

/** Tries again for as long as Postgres is away. @throws the signal's reason once the run is stopped */
export async function untilPostgresAnswers<T>(
  work: () => Promise<T>,
  { stopSwitch, logger, jobId }: PersistOptions,
): Promise<T> {
  for (let tries = 0; ; tries += 1) {
    stopSwitch.signal.throwIfAborted()
    try {
      return await work()
    } catch (error) {
      if (!isTransientDatabaseError(error)) throw error
      logger.warn({ jobId, error, tries }, 'Postgres did not answer in the middle of a run; trying again')
      await pause(Math.min(FIRST_PAUSE_MS * 2 ** tries, LONGEST_PAUSE_MS), stopSwitch.signal)
    }
  }
}
