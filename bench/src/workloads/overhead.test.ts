// One workload at its smallest, on real services: Offshoot and both baselines, to the table and the picture.
import { expect, test } from 'vitest'
import { drawRounds } from '../draw-rounds.ts'
import { tableOf } from '../report.ts'
import { TARGETS } from '../targets.ts'
import { summarize } from '../workload.ts'
import { WORKLOADS } from '../workloads.ts'
import { overhead } from './overhead.ts'

test('a round of a workload measures Offshoot and its baselines', async () => {
  const { signal } = new AbortController()
  const { round, charts, close } = await overhead.open({ quick: true, log: () => undefined, signal })
  try {
    const figures = await round()
    expect(Object.entries(figures).filter(([, value]) => !Number.isFinite(value))).toEqual([])
    expect(figures).toMatchObject({ offshootP50Ms: expect.any(Number), bullmqP50Ms: expect.any(Number) })
    expect(figures['bareP50Ms']).toBeGreaterThan(0)
    const drawn = charts.flatMap((chart) => (chart.kind === 'bars' ? chart.bars.map(({ figure }) => figure) : []))
    expect(Object.keys(figures)).toEqual(expect.arrayContaining(drawn))
    expect(tableOf(overhead.name, summarize([figures]))).toContain('overheadRatioToBullmq')
    expect(drawRounds(overhead.name, summarize([figures]), charts)).toContain('raw BullMQ, p50')
  } finally {
    await close()
  }
})

test('each target is of a workload', () => {
  const names = WORKLOADS.map(({ name }) => name)
  for (const { figure } of TARGETS) expect(names).toContain(figure.split('.')[0])
})
