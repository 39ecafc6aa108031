// The table of a workload's figures: the median, its spread over the rounds, and the verdict where there is a target.
import { targetOf, verdictOn } from './targets.ts'
import type { Summary } from './workload.ts'

export function tableOf(name: string, figures: Record<string, Summary>): string {
  const rows = Object.entries(figures).map(([figure, { median: middle, rounds }]) => {
    const target = targetOf(name, figure)
    const sign = target?.better === 'more' ? '≥' : '≤'
    const goal = target === undefined ? '' : `must ${sign} ${target.must}, aim ${sign} ${target.aim}`
    return [
      figure,
      format(middle),
      `${format(Math.min(...rounds))} … ${format(Math.max(...rounds))}`,
      goal,
      target === undefined ? '' : verdictOn(target, middle),
    ]
  })
  const table = [['figure', 'median', 'over the rounds', 'target', ''], ...rows]
  const widths = table[0]?.map((_, column) => Math.max(...table.map((row) => (row[column] ?? '').length))) ?? []
  const lines = table.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd(),
  )
  return `\n${name}\n${lines.map((line) => `  ${line}`).join('\n')}\n\n`
}

export function format(value: number): string {
  if (!Number.isFinite(value)) return 'unknown'
  return Math.abs(value) >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString()
}
