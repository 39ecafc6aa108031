// A workload runs Offshoot and its baselines in turn, in each round, so that ratios hold on a noisy machine.
export interface Workload {
  name: string
  /** A sentence for the table's head. */
  about: string
  /** Rounds that warm up and are not counted. */
  warmUps: number
  open(): Promise<OpenWorkload>
}

export interface OpenWorkload {
  /** The figures of one round, by name. */
  round(): Promise<Figures>
  close(): Promise<void>
}

export type Figures = Record<string, number>

export function percentile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? NaN
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  const middle = sorted.length / 2
  return sorted.length % 2 === 1
    ? (sorted[Math.floor(middle)] ?? NaN)
    : ((sorted[middle - 1] ?? NaN) + (sorted[middle] ?? NaN)) / 2
}
