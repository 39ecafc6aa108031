import { expect, test } from 'vitest'
import { drawRounds } from './draw-rounds.ts'
import { ticksTo } from './svg.ts'

test('a picture shows the targets, bars and lines of a workload, and is well-formed', () => {
  const picture = drawRounds(
    'throughput',
    {
      commitsPerJob: { median: 5, rounds: [4, 5, 7] },
      jobsPerS: { median: 100, rounds: [90, 100, 110] },
      unknown: { median: NaN, rounds: [NaN] },
    },
    [
      {
        kind: 'bars',
        title: 'Jobs & more',
        unit: 'jobs/s',
        bars: [
          { label: 'Offshoot', figure: 'jobsPerS' },
          { label: 'nobody', figure: 'unknown' },
        ],
      },
      {
        kind: 'lines',
        title: 'Growth',
        unit: 'jobs/s',
        xTitle: 'finished jobs',
        xBase: 10,
        lines: [{ label: 'one worker', points: [10, 100].map((x) => ({ x, figure: 'jobsPerS' })) }],
      },
    ],
  )
  for (const shown of ['must ≤ 6, aim ≤ 4', 'must reached', 'Jobs &amp; more', 'finished jobs', '100 jobs/s'])
    expect(picture).toContain(shown)
  expect(picture).not.toMatch(/NaN|undefined|Infinity/)
  // What opens is closed: every element is either empty or a text.
  const texts = picture.match(/<text [^<>]*>[^<>]*<\/text>/g) ?? []
  const empty = picture.match(/<(?:rect|line|circle|polyline) [^<>]*\/>/g) ?? []
  expect(texts.length + empty.length + 2).toBe(picture.trim().split('\n').length)
})

test('ticks are round numbers from 0 to at least the greatest value', () => {
  expect(ticksTo(0)).toEqual([0, 1])
  expect(ticksTo(NaN)).toEqual([0, 1])
  expect(ticksTo(0.9)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1])
  expect(ticksTo(687)).toEqual([0, 200, 400, 600, 800])
  expect(ticksTo(10)).toEqual([0, 2, 4, 6, 8, 10])
})
