// Suspects: jobs with which two workers or more were lost since they last stored a step. One of them may be what ends the
// workers, and nobody knows which. A process therefore runs one of them at a time: what ends it then counts against that
// one alone, and the others are not quarantined for having been near (docs/decisions/0014).

const SUSPECT_AFTER_CRASHES = 2

export interface Suspects {
  /** False: another suspect runs here, so that this one has to wait for its turn. */
  mayRun(job: { claimToken: string; crashes: number }): boolean
  /** The attempt has stored a step, or is over. */
  clear(claimToken: string): void
}

export function createSuspects(): Suspects {
  let running: string | undefined
  return {
    mayRun({ claimToken, crashes }) {
      if (crashes < SUSPECT_AFTER_CRASHES) return true
      running ??= claimToken
      return running === claimToken
    },
    clear(claimToken) {
      if (running === claimToken) running = undefined
    },
  }
}
