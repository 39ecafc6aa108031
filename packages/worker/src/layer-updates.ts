// The versions of a parent's state that one child and layer has to be handed: one at a time, in their order, each once.
import type { StoredLayerState } from '@offshoot/shared/layers'

export interface LayerUpdates {
  layerId: string
  seen(): number
  /** Hands over all that is new; resolves when nothing is. */
  look(): Promise<void>
  /** No further one begins; resolves when the one that runs has ended. */
  pause(): Promise<void>
  resume(): void
}

export function createLayerUpdates(options: {
  layerId: string
  seenAtStart: number
  isStopped(): boolean
  /** Versions after this one, oldest first. */
  read(version: number): Promise<StoredLayerState[]>
  /** False: it could not be handed over, nor can a later one. */
  deliver(state: StoredLayerState): Promise<boolean>
  onError(error: unknown): void
}): LayerUpdates {
  let seen = options.seenAtStart
  let paused = false
  let running: Promise<void> | undefined
  let again = false

  async function handOver(): Promise<void> {
    do {
      again = false
      for (let states = await options.read(seen); states.length > 0; states = await options.read(seen)) {
        for (const state of states) {
          if (paused || options.isStopped() || !(await options.deliver(state))) return
          seen = state.version
        }
      }
    } while (again)
  }

  function look(): Promise<void> {
    if (paused || options.isStopped()) return Promise.resolve()
    again = true
    running ??= handOver()
      .catch(options.onError)
      .finally(() => {
        running = undefined
        // Somebody asked just as it ended.
        if (again) void look()
      })
    return running
  }

  return {
    layerId: options.layerId,
    seen: () => seen,
    look,
    async pause() {
      paused = true
      await running
    },
    resume() {
      paused = false
    },
  }
}
