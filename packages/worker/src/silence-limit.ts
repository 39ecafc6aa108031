// A limit on how long nothing may be heard. One timer, however much is heard.

export interface SilenceLimit {
  heard(): void
  stop(): void
}

/** Calls `onSilence` once, when nothing was heard for `limitMs`. */
export function createSilenceLimit(limitMs: number, onSilence: () => void): SilenceLimit {
  let heardAt = performance.now()
  let timer = setTimeout(look, limitMs)

  function look(): void {
    const leftMs = heardAt + limitMs - performance.now()
    if (leftMs > 0) timer = setTimeout(look, Math.ceil(leftMs))
    else onSilence()
  }

  return {
    heard() {
      heardAt = performance.now()
    },
    stop: () => clearTimeout(timer),
  }
}
