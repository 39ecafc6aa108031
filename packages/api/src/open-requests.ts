// Requests that stay open: live streams and waits. Each ends when its client goes away or the process stops. Ending one
// never stops a job.
import type { Response } from 'express'

export interface OpenRequests {
  /** Aborted when the answer's connection is closed or the process stops; never after the answer has ended. */
  signalOf(response: Response): AbortSignal
  /** Ends all that are open, and those that still come. */
  end(): void
  /** How many are open. */
  size(): number
}

export function createOpenRequests(): OpenRequests {
  const open = new Set<AbortController>()
  let ended = false
  return {
    signalOf(response) {
      const controller = new AbortController()
      if (ended || response.destroyed) controller.abort()
      else {
        open.add(controller)
        response.once('close', () => {
          open.delete(controller)
          if (!response.writableFinished) controller.abort()
        })
      }
      return controller.signal
    },
    end() {
      ended = true
      for (const controller of open) controller.abort()
    },
    size: () => open.size,
  }
}
