// A workload runs Offshoot and its baselines in turn, in each round, so that ratios hold on a noisy machine.
import type { Chart } from './chart.ts'

export interface Workload {
  name: string
  /** A sentence for the table's head. */
  about: string
  /** Rounds that warm up and are not counted. */
  warmUps: number
  open(options: WorkloadOptions): Promise<OpenWorkload>
}

export interface WorkloadOptions {
  /** Small sizes, to try a workload out: its figures say little. */
  quick: boolean
  /** Progress, for people. */
  log(line: string): void
  /** Aborted when the run is to end: what takes long gives up. */
  signal: AbortSignal
}

export interface OpenWorkload {
  /** The figures of one round, by name. */
  round(): Promise<Figures>
  /** What is drawn beside the figures that have a target. */
  charts: readonly Chart[]
  close(): Promise<void>
}

export type Figures = Record<string, number>

/** A figure's median and its value in each round. */
export interface Summary {
  median: number
  rounds: number[]
}

export function summarize(rounds: readonly Figures[]): Record<string, Summary> {
  const figures = Object.keys(rounds[0] ?? {})
  return Object.fromEntries(
    figures.map((figure) => {
      const values = rounds.map((round) => round[figure] ?? NaN)
      return [figure, { median: median(values), rounds: values }]
    }),
  )
}

/** The smallest value that at least this share of all values does not exceed. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.max(Math.ceil(sorted.length * share), 1) - 1] ?? NaN
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  const middle = sorted.length / 2
  return sorted.length % 2 === 1
    ? (sorted[Math.floor(middle)] ?? NaN)
    : ((sorted[middle - 1] ?? NaN) + (sorted[middle] ?? NaN)) / 2
}
