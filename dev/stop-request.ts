import { watchRunners } from './runner-watch.ts'

/** A terminal and pnpm may both tell us of one Ctrl-C. */
const SAME_REQUEST_MS = 1_000

export type StopRequest = NodeJS.Signals | 'runner gone'

/**
 * Calls `stop` when a person or the system wants this process to end: SIGINT, SIGTERM, SIGHUP, or the end of the npm or
 * pnpm that runs it. Asked again, later than a second after, it calls `stopNow`.
 */
export function onStopRequest(stop: (request: StopRequest) => void, stopNow: () => void) {
  let firstAt: number | undefined
  const ask = (request: StopRequest) => {
    if (firstAt === undefined) {
      firstAt = performance.now()
      stop(request)
    } else if (performance.now() - firstAt > SAME_REQUEST_MS) stopNow()
  }
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, ask)
  watchRunners(() => ask('runner gone'))
}
