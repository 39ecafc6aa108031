/** Waits for a condition, never for a duration. `what` names it when the time is over. */
export async function waitUntil<T>(
  look: () => Promise<T | undefined | false | null> | T | undefined | false | null,
  options: { within?: number; what?: string } = {},
): Promise<T> {
  const { within = 15_000, what = 'the condition' } = options
  const until = performance.now() + within
  for (;;) {
    const found = await look()
    if (found !== undefined && found !== false && found !== null) return found
    if (performance.now() > until) throw new Error(`${what} did not come true within ${within} ms`)
    await new Promise((resolve) => setTimeout(resolve, 15))
  }
}
