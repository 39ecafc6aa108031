// How tests read what Prometheus would.

/** The value of the series with these labels and no others; undefined when there is none. */
export function seriesIn(text: string, name: string, labels: Record<string, string> = {}): number | undefined {
  const wanted = Object.entries(labels).map(([label, value]) => `${label}="${value}"`)
  for (const line of text.split('\n')) {
    const [, found, given = '', value] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? []
    if (found !== name) continue
    const present = given === '' ? [] : given.split(/,(?=\w+=")/)
    if (present.toSorted().join() === wanted.toSorted().join()) return Number(value)
  }
  return undefined
}

/** The same of the numbers that a runtime has counted; 0 where it has counted nothing. */
export async function counted(
  { metrics }: { metrics: { registry: { metrics(): Promise<string> } } },
  name: string,
  labels: Record<string, string> = {},
): Promise<number> {
  return seriesIn(await metrics.registry.metrics(), name, labels) ?? 0
}
