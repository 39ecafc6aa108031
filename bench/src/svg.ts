// Pieces of an SVG, as text. Numbers are pixels.
export interface TextStyle {
  anchor?: 'start' | 'middle' | 'end'
  size?: number
  fill?: string
  bold?: boolean
}

const INK = '#1f2937'
export const FAINT = '#6b7280'
export const GRID = '#e5e7eb'

export function text(x: number, y: number, content: string, style: TextStyle = {}): string {
  const { anchor = 'start', size = 12, fill = INK, bold = false } = style
  const weight = bold ? ' font-weight="600"' : ''
  return `<text x="${px(x)}" y="${px(y)}" text-anchor="${anchor}" font-size="${size}" fill="${fill}"${weight}>${escape(content)}</text>`
}

export function line(from: Point, to: Point, stroke: string, width = 1): string {
  return `<line x1="${px(from.x)}" y1="${px(from.y)}" x2="${px(to.x)}" y2="${px(to.y)}" stroke="${stroke}" stroke-width="${width}"/>`
}

export function box(from: Point, size: { width: number; height: number }, fill: string): string {
  return `<rect x="${px(from.x)}" y="${px(from.y)}" width="${px(size.width)}" height="${px(size.height)}" fill="${fill}"/>`
}

export function dot({ x, y }: Point, fill: string, radius = 2.5): string {
  return `<circle cx="${px(x)}" cy="${px(y)}" r="${radius}" fill="${fill}" stroke="white" stroke-width="0.8"/>`
}

export function path(points: readonly Point[], stroke: string): string {
  const list = points.map(({ x, y }) => `${px(x)},${px(y)}`).join(' ')
  return `<polyline points="${list}" fill="none" stroke="${stroke}" stroke-width="2"/>`
}

export interface Point {
  x: number
  y: number
}

export function svgOf(width: number, height: number, content: readonly string[]): string {
  const size = `width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"`
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="system-ui, sans-serif">`,
    box({ x: 0, y: 0 }, { width, height }, 'white'),
    ...content,
    '</svg>',
    '',
  ].join('\n')
}

/** Round values from 0 to at least `max`, about five of them. */
export function ticksTo(max: number): number[] {
  if (!(max > 0)) return [0, 1]
  const rough = max / 5
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = ([1, 2, 2.5, 5].find((factor) => factor * power >= rough) ?? 10) * power
  return Array.from({ length: Math.ceil(max / step - 1e-9) + 1 }, (_, at) => Number((at * step).toPrecision(12)))
}

function px(value: number): string {
  return Number(value.toFixed(1)).toString()
}

function escape(content: string): string {
  return content.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;')
}
