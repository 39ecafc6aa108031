/** A pause that somebody else may end. */
export interface Waker {
  /** Ends the pause under way, or the next one at once. */
  wake(): void
  /** Resolves after `ms`, or when woken: since the last pause, or during this one. */
  pause(ms: number): Promise<void>
}

export function createWaker(): Waker {
  let woken = false
  let end: (() => void) | undefined
  return {
    wake() {
      woken = true
      end?.()
    },
    async pause(ms) {
      if (!woken) {
        await new Promise<void>((resolve) => {
          const timer = setTimeout(resolve, ms)
          end = () => {
            clearTimeout(timer)
            resolve()
          }
        })
        end = undefined
      }
      woken = false
    },
  }
}
