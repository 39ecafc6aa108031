/**
 * Models fill optional fields with `""`, `[]` and `{}`. Those count as absent: the returned copy leaves them out, at
 * every depth, but for the fields named in `required`, which stay even when they are empty.
 */
export function withoutEmptyOptions(value: unknown, required: readonly string[] = []): unknown {
  if (value === null || typeof value !== 'object' || Array.isArray(value)) return value
  const kept: [string, unknown][] = []
  for (const [name, field] of Object.entries(value)) {
    const inner = withoutEmptyOptions(field)
    if (required.includes(name) || !isEmpty(inner)) kept.push([name, inner])
  }
  return Object.fromEntries(kept)
}

function isEmpty(value: unknown): boolean {
  if (value === '' || value === null || value === undefined) return true
  if (Array.isArray(value)) return value.length === 0
  return typeof value === 'object' && Object.keys(value).length === 0
}
