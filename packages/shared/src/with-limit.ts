export class LimitError extends Error {
  override name = 'LimitError'
}

/** Resolves as `work` does, or rejects with a LimitError after `limitMs`; what `work` does later is nobody's business any more. */
export async function withLimit<T>(work: Promise<T>, limitMs: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const limit = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new LimitError(`no answer within ${limitMs} ms`)), limitMs)
  })
  work.catch(() => undefined)
  try {
    return await Promise.race([work, limit])
  } finally {
    clearTimeout(timer)
  }
}
