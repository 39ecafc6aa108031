// A workload's picture: each figure that has a target, with what it must be and what we aim at, then the workload's own
// charts. Bars and lines are medians, dots the single rounds.
import type { BarChart, Chart, LineChart } from './chart.ts'
import { format } from './report.ts'
import { box, dot, FAINT, GRID, line, path, type Point, svgOf, text, ticksTo } from './svg.ts'
import { type Target, targetOf, type Verdict, verdictOn } from './targets.ts'
import type { Summary } from './workload.ts'

type FiguresByName = Record<string, Summary>

/** A part of the picture, drawn at a height of its own. */
interface Panel {
  height: number
  draw(top: number): string[]
}

const WIDTH = 900
const MARGIN = 24
const ROW = 30
const BAR = 16
/** Where bars begin and end, with their labels before and their values after them. */
const LEFT = 300
const RIGHT = WIDTH - 230
const LINES = ['#2563eb', '#f59e0b', '#10b981', '#a855f7', '#64748b']
/** By the beginning of a bar's label: who it is. */
const BARS: [who: string, fill: string][] = [
  ['Offshoot', '#2563eb'],
  ['raw BullMQ', '#f59e0b'],
  ['bare', '#64748b'],
]
const OTHER_BAR = '#c4b5fd'
const MUST = '#dc2626'
const AIM = '#059669'
const ROUND = '#1e293b'
const VERDICT_FILLS: Record<Verdict, string> = {
  'aim reached': '#a7f3d0',
  'must reached': '#fde68a',
  MISSED: '#fecaca',
}

export function drawRounds(name: string, figures: FiguresByName, charts: readonly Chart[]): string {
  const panels = [targetPanel(name, figures), ...charts.map((chart) => chartPanel(chart, figures))]
  const content = [text(MARGIN, 36, name, { size: 22, bold: true })]
  let top = 60
  for (const { height, draw } of panels) {
    content.push(...draw(top))
    top += height
  }
  return svgOf(WIDTH, top + MARGIN, content)
}

function chartPanel(chart: Chart, figures: FiguresByName): Panel {
  return chart.kind === 'bars' ? barPanel(chart, figures) : linePanel(chart, figures)
}

/** One row a figure, each on a scale of its own: they have nothing in common but their targets. */
function targetPanel(name: string, figures: FiguresByName): Panel {
  const rows = Object.entries(figures).flatMap(([figure, summary]) => {
    const target = targetOf(name, figure)
    return target === undefined ? [] : [{ figure, summary, target }]
  })
  if (rows.length === 0) return { height: 0, draw: () => [] }
  return {
    height: 70 + rows.length * ROW,
    draw(top) {
      const legend = [
        line({ x: LEFT, y: top + 22 }, { x: LEFT, y: top + 36 }, MUST, 2),
        text(LEFT + 8, top + 33, 'must', { fill: FAINT }),
        line({ x: LEFT + 60, y: top + 22 }, { x: LEFT + 60, y: top + 36 }, AIM, 2),
        text(LEFT + 68, top + 33, 'aim', { fill: FAINT }),
        ...roundLegend(LEFT + 120, top + 29),
      ]
      return [
        text(MARGIN, top + 14, 'Against the targets', { size: 15, bold: true }),
        ...legend,
        ...rows.flatMap((row, at) => targetRow(row, top + 46 + at * ROW)),
      ]
    },
  }
}

function targetRow(row: { figure: string; summary: Summary; target: Target }, top: number): string[] {
  const { figure, summary, target } = row
  const { median, rounds } = summary
  const max = Math.max(...[median, ...rounds, target.must, target.aim].filter(Number.isFinite)) * 1.08 || 1
  const xOf = (value: number) => LEFT + (value / max) * (RIGHT - LEFT)
  const middle = top + ROW / 2
  const mark = (value: number, stroke: string) =>
    line({ x: xOf(value), y: top + 3 }, { x: xOf(value), y: top + ROW - 3 }, stroke, 2)
  const verdict = verdictOn(target, median)
  const sign = target.better === 'less' ? '≤' : '≥'
  return [
    text(LEFT - 10, middle + 4, figure, { anchor: 'end' }),
    line({ x: LEFT, y: top + 2 }, { x: LEFT, y: top + ROW - 2 }, FAINT),
    ...bar(LEFT, xOf(median), middle, VERDICT_FILLS[verdict]),
    ...rounds.filter(Number.isFinite).map((value) => dot({ x: xOf(value), y: middle }, ROUND)),
    mark(target.must, MUST),
    mark(target.aim, AIM),
    text(RIGHT + 10, middle, `${format(median)}  ${verdict}`, { bold: true }),
    text(RIGHT + 10, middle + 12, `must ${sign} ${target.must}, aim ${sign} ${target.aim}`, { size: 10, fill: FAINT }),
  ]
}

function barPanel({ title, unit, bars }: BarChart, figures: FiguresByName): Panel {
  const rows = bars.map(({ label, figure }) => ({ label, summary: summaryOf(figures, figure) }))
  const ticks = ticksTo(Math.max(...rows.flatMap(({ summary }) => summary.rounds).filter(Number.isFinite), 0))
  const xOf = (value: number) => LEFT + (value / (ticks.at(-1) ?? 1)) * (RIGHT - LEFT)
  return {
    height: 98 + rows.length * ROW,
    draw(top) {
      const first = top + 42
      const bottom = first + rows.length * ROW
      const grid = ticks.flatMap((tick) => [
        line({ x: xOf(tick), y: first }, { x: xOf(tick), y: bottom }, tick === 0 ? FAINT : GRID),
        text(xOf(tick), bottom + 16, format(tick), { anchor: 'middle', size: 11, fill: FAINT }),
      ])
      const row = ({ label, summary }: (typeof rows)[number], at: number) => {
        const middle = first + at * ROW + ROW / 2
        return [
          text(LEFT - 10, middle + 4, label, { anchor: 'end' }),
          ...bar(LEFT, xOf(summary.median), middle, fillOf(label)),
          ...summary.rounds.filter(Number.isFinite).map((value) => dot({ x: xOf(value), y: middle }, ROUND)),
          text(RIGHT + 10, middle + 4, `${format(summary.median)} ${unit}`, { bold: true }),
        ]
      }
      return [
        text(MARGIN, top + 14, `${title} (${unit})`, { size: 15, bold: true }),
        ...roundLegend(LEFT, top + 29),
        ...grid,
        ...rows.flatMap(row),
      ]
    },
  }
}

function linePanel({ title, unit, xTitle, xBase, lines }: LineChart, figures: FiguresByName): Panel {
  const height = 240
  const left = MARGIN + 60
  const sizes = [...new Set(lines.flatMap(({ points }) => points.map(({ x }) => x)))].sort((a, b) => a - b)
  const exponentOf = (x: number) => Math.log(x) / Math.log(xBase)
  const [least, most] = [exponentOf(sizes[0] ?? 1), exponentOf(sizes.at(-1) ?? 1)]
  const shareOf = (x: number) => (most === least ? 0.5 : (exponentOf(x) - least) / (most - least))
  const values = lines.flatMap(({ points }) => points.flatMap(({ figure }) => summaryOf(figures, figure).rounds))
  const ticks = ticksTo(Math.max(...values.filter(Number.isFinite), 0))
  const xOf = (x: number) => left + 20 + shareOf(x) * (RIGHT - left - 40)
  return {
    height: height + 110,
    draw(top) {
      const first = top + 34
      const bottom = first + height
      const yOf = (value: number) => bottom - (value / (ticks.at(-1) ?? 1)) * height
      const grid = ticks.flatMap((tick) => [
        line({ x: left, y: yOf(tick) }, { x: RIGHT, y: yOf(tick) }, tick === 0 ? FAINT : GRID),
        text(left - 8, yOf(tick) + 4, format(tick), { anchor: 'end', size: 11, fill: FAINT }),
      ])
      const axis = sizes.map((x) =>
        text(xOf(x), bottom + 18, x.toLocaleString('en'), { anchor: 'middle', size: 11, fill: FAINT }),
      )
      const drawn = lines.flatMap(({ label, points }, at) => {
        const color = colorOf(at)
        const medians: Point[] = points.map(({ x, figure }) => ({
          x: xOf(x),
          y: yOf(summaryOf(figures, figure).median),
        }))
        const rounds = points.flatMap(({ x, figure }) =>
          summaryOf(figures, figure).rounds.map((value) => dot({ x: xOf(x), y: yOf(value) }, color)),
        )
        const legend = first + 16 + at * 22
        return [
          path(medians, color),
          ...rounds,
          ...medians.map((point) => dot(point, color, 4.5)),
          line({ x: RIGHT + 14, y: legend }, { x: RIGHT + 34, y: legend }, color, 2),
          text(RIGHT + 42, legend + 4, label),
        ]
      })
      return [
        text(MARGIN, top + 14, `${title} (${unit})`, { size: 15, bold: true }),
        ...grid,
        ...axis,
        text((left + RIGHT) / 2, bottom + 38, xTitle, { anchor: 'middle', fill: FAINT }),
        ...drawn,
      ]
    },
  }
}

function bar(from: number, to: number, middle: number, fill: string): string[] {
  if (!Number.isFinite(to)) return []
  return [box({ x: from, y: middle - BAR / 2 }, { width: Math.max(to - from, 0), height: BAR }, fill)]
}

function roundLegend(x: number, y: number): string[] {
  return [dot({ x, y }, ROUND), text(x + 8, y + 4, 'a round; the bar is the median', { fill: FAINT })]
}

function summaryOf(figures: FiguresByName, figure: string): Summary {
  return figures[figure] ?? { median: NaN, rounds: [] }
}

function colorOf(at: number): string {
  return LINES[at % LINES.length] ?? FAINT
}

function fillOf(label: string): string {
  return BARS.find(([who]) => label.startsWith(who))?.[1] ?? OTHER_BAR
}
