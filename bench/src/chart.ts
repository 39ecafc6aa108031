// What a workload wants to have drawn, in names of its figures.
export type Chart = BarChart | LineChart

interface OfAnyKind {
  title: string
  /** Of the values. */
  unit: string
}

/** Medians side by side, with the values of the single rounds as dots. */
export interface BarChart extends OfAnyKind {
  kind: 'bars'
  bars: readonly { label: string; figure: string }[]
}

/** Medians over a size, on a scale in powers of `xBase`. */
export interface LineChart extends OfAnyKind {
  kind: 'lines'
  xTitle: string
  xBase: number
  lines: readonly { label: string; points: readonly { x: number; figure: string }[] }[]
}
