/**
 * Answers with one reading for all who ask within `ms` of its begin, or while it is under way: a storm of questions costs
 * one. A failed reading is shared like any other.
 */
export function shareFor<T>(ms: number, read: () => Promise<T>): () => Promise<T> {
  let shared: Promise<T> | undefined
  let begunAt = -Infinity
  let underway = false
  return () => {
    if (shared !== undefined && (underway || performance.now() - begunAt < ms)) return shared
    begunAt = performance.now()
    underway = true
    shared = read().finally(() => {
      underway = false
    })
    return shared
  }
}
