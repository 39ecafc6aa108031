// Why an attempt has to stop before its time. The first reason wins; it is carried by the run's own abort signal.

export type RunStop =
  /** Somebody wants the job to end: the wish is in its row. */
  | { kind: 'abort-wish' }
  | { kind: 'deadline' }
  /** The claim is not ours any more, or we cannot know: nothing may be written. */
  | { kind: 'claim-lost'; because: string }
  /** The process is about to end: the job goes to another worker. */
  | { kind: 'drain' }
  /** The right to run as the job's owner was taken back. */
  | { kind: 'right-withdrawn' }
  /** Nobody knows what came of a tool call that a lost worker ran, and its tool lets no job go on then. */
  | { kind: 'call-unknown'; toolName: string }

/** The reason of the abort signal that stops a run. */
export class RunStopped extends Error {
  override name = 'RunStopped'
  readonly stop: RunStop

  constructor(stop: RunStop) {
    super(`the run was stopped: ${stop.kind}`)
    this.stop = stop
  }
}

export interface StopSwitch {
  readonly signal: AbortSignal
  /** Why the run was stopped, if it was. */
  reason(): RunStop | undefined
  stop(reason: RunStop): void
}

export function createStopSwitch(): StopSwitch {
  const controller = new AbortController()
  let first: RunStop | undefined
  return {
    signal: controller.signal,
    reason: () => first,
    stop(reason) {
      if (first !== undefined) return
      first = reason
      controller.abort(new RunStopped(reason))
    },
  }
}
