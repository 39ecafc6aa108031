/** Waits, or throws the signal's reason when it is aborted meanwhile. */
export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted()
  await new Promise<void>((resolve) => {
    const done = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done)
  })
  signal.throwIfAborted()
}

/** Calls `late` when `work` comes to something although the signal was aborted before. */
export function whenLate<T>(work: PromiseLike<T>, signal: AbortSignal, late: (value: T) => void): void {
  work.then(
    (value) => {
      if (signal.aborted) late(value)
    },
    () => undefined,
  )
}

/** What `work` comes to; rejects with the signal's reason as soon as that is aborted, whatever `work` does then. */
export async function untilAborted<T>(work: PromiseLike<T>, signal: AbortSignal): Promise<T> {
  const aborted = Promise.withResolvers<never>()
  const onAbort = () => aborted.reject(signal.reason)
  signal.addEventListener('abort', onAbort, { once: true })
  if (signal.aborted) onAbort()
  try {
    return await Promise.race([work, aborted.promise])
  } finally {
    signal.removeEventListener('abort', onAbort)
  }
}
