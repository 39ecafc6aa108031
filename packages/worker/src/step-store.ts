// Where an attempt's steps are stored: the output of a model call, and later the step as whole. An output that nothing but
// the job's end follows from is held until then.
import type { Claim } from '@offshoot/shared/db/agent-jobs'
import type { Database } from '@offshoot/shared/db/database'
import { type Counters, type ModelOutput, type StoredStep, storeWholeStep } from '@offshoot/shared/db/journal'
import type { Groups } from '@offshoot/shared/groups'
import type { Logger } from '@offshoot/shared/logger'
import type { CutCalls } from './cut-calls.ts'
import type { Persist } from './persist.ts'

export interface StepStore {
  /** False: the claim was gone. */
  storeOutput(output: ModelOutput): Promise<boolean>
  hold(output: ModelOutput): void
  /** The whole output of the last step, while it is not stored. */
  held(): ModelOutput | undefined
  /** Stores what is held of a run that was stopped: it is paid for. False: it could not be. */
  storeHeld(): Promise<boolean>
  /**
   * Stores a step as whole, with its output where that is held. `malformed`: it called tools, and every call was malformed. Answers whether the inbox has
   * unread items.
   */
  storeWhole(
    index: number,
    messages: NonNullable<StoredStep['responseMessages']>,
    malformed?: boolean,
  ): Promise<boolean>
}

export interface StepStoreOptions {
  database: Database
  groups: Pick<Groups, 'storeOutput'>
  claim: Claim
  persist: Persist
  cutCalls: CutCalls
  logger: Logger
  /** Called after an output is stored, with the job's counters; null: the claim was gone. */
  onStored(counters: Counters | null): void
}

export function createStepStore(options: StepStoreOptions): StepStore {
  const { database, groups, claim, persist, cutCalls, logger, onStored } = options
  let held: ModelOutput | undefined

  async function storeOutput(output: ModelOutput): Promise<boolean> {
    let counters: Counters | null = null
    const stored = await persist(async () => {
      const answer = await groups.storeOutput({ claim, output })
      ;({ counters } = answer)
      return answer
    })
    onStored(counters)
    return stored
  }

  function heldIsStored(): void {
    held = undefined
    cutCalls.heldStored()
  }

  return {
    storeOutput,
    hold: (output) => void (held = output),
    held: () => held,
    async storeHeld() {
      if (held === undefined) return true
      try {
        const answer = await groups.storeOutput({ claim, output: held })
        if (answer.held) heldIsStored()
        return answer.held
      } catch (error) {
        logger.warn({ jobId: claim.jobId, error }, 'the output of a run that was stopped could not be stored')
        return false
      }
    },
    async storeWhole(index, messages, malformed) {
      if (held !== undefined && (await storeOutput(held))) heldIsStored()
      let unread = false
      await persist(async () => {
        const answer = await storeWholeStep(database.direct, claim, index, messages, malformed)
        ;({ unread } = answer)
        return answer
      })
      return unread
    },
  }
}
