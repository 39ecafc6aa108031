// The same work with ever more finished jobs in Postgres, and with more workers. Spawns are timed while the queue is paused,
// the work from when it goes on. The sizes run in turn, some jobs at a time; the smallest one is the baseline.
import type { TestProcess } from '@offshoot/testing/processes'
import { type BenchStage, inLanes, openBenchStage, PLAIN } from '../bench-stage.ts'
import type { Chart } from '../chart.ts'
import { addHistory } from '../history.ts'
import { costOf } from '../meters.ts'
import { planOf } from '../plan.ts'
import { type Figures, percentile, type Workload, type WorkloadOptions } from '../workload.ts'

const SIZES = [10_000, 100_000, 1_000_000]
const QUICK_SIZES = [1_000, 2_000, 5_000]
const WORKERS = [1, 2, 4]
const AT_A_TIME = 100
/** Of so many jobs each, for a size and for a number of workers. */
const SLICES = { size: 4, workers: 2 }
const QUICK_SLICES = { size: 1, workers: 1 }

export const growth: Workload = {
  name: 'growth',
  about: `spawns and their work with ${SIZES.join(', ')} finished jobs in Postgres, and with ${WORKERS.join(', ')} workers`,
  // Each database and worker has run some jobs before it is measured.
  warmUps: 0,
  async open(options) {
    const sizes = options.quick ? QUICK_SIZES : SIZES
    const slices = options.quick ? QUICK_SLICES : SLICES
    const stages: BenchStage[] = []
    const close = async () => {
      for (const stage of stages) await stage.close()
    }
    try {
      for (const size of sizes) {
        const stage = await openBenchStage()
        stages.push(stage)
        await prepare(stage, size, options)
      }
    } catch (error) {
      await close()
      throw error
    }
    return {
      round: async () => ({
        ...(await measureSizes(sizes, stages, slices.size)),
        ...(await measureWorkers(stages.at(-1), slices.workers)),
      }),
      charts: chartsOf(sizes),
      close,
    }
  },
}

async function prepare(stage: BenchStage, size: number, { log, signal }: WorkloadOptions): Promise<void> {
  await stage.startWorker()
  const { id: jobId } = await stage.spawn(0, planOf('the first one'), PLAIN)
  await stage.untilAllCompleted()
  const startedAt = performance.now()
  await addHistory({ databaseUrl: stage.config.DATABASE_URL, jobId, count: size, log, signal })
  log(`${size} finished jobs: made in ${((performance.now() - startedAt) / 1_000).toFixed(0)} s`)
  await measureSlice(stage)
}

async function measureSizes(sizes: readonly number[], stages: readonly BenchStage[], slices: number): Promise<Figures> {
  const measured = stages.map((): Slice[] => [])
  const { wallMs, cpuMs } = await costOf({ model: stages[0]?.model.pid ?? 0 }, async () => {
    for (let slice = 0; slice < slices; slice += 1)
      for (const [at, stage] of stages.entries()) measured[at]?.push(await measureSlice(stage))
  })
  const bySize = measured.map((ofSize) => ({
    jobsPerS: jobsPerS(ofSize),
    spawnP50Ms: percentile(spawnTimes(ofSize), 0.5),
    spawnP99Ms: percentile(spawnTimes(ofSize), 0.99),
  }))
  const [least, most] = [bySize[0], bySize.at(-1)]
  const figures = bySize.flatMap((ofSize, at) =>
    Object.entries(ofSize).map(([figure, value]): [string, number] => [`${figure}At${sizes[at]}`, value]),
  )
  return {
    ...Object.fromEntries(figures),
    throughputRatio: (most?.jobsPerS ?? NaN) / (least?.jobsPerS ?? NaN),
    // More is better, as with the other one.
    spawnRatio: (least?.spawnP50Ms ?? NaN) / (most?.spawnP50Ms ?? NaN),
    modelCpuShare: cpuMs.model / wallMs,
  }
}

/** Of a stage that has one worker. */
async function measureWorkers(stage: BenchStage | undefined, slices: number): Promise<Figures> {
  if (stage === undefined) return {}
  const more: TestProcess[] = []
  const figures: Figures = {}
  for (const count of WORKERS) {
    while (more.length < count - 1) more.push(await stage.startWorker())
    for (const _ of more) await measureSlice(stage)
    const measured: Slice[] = []
    for (let slice = 0; slice < slices; slice += 1) measured.push(await measureSlice(stage))
    figures[`jobsPerSWithWorkers${count}`] = jobsPerS(measured)
  }
  await Promise.all(more.map((worker) => worker.stop()))
  return figures
}

interface Slice {
  spawnMs: number[]
  workMs: number
}

async function measureSlice(stage: BenchStage): Promise<Slice> {
  await stage.model.forget()
  const lane = stage.runtime.deliveries.lane('default')
  const plans = Array.from({ length: AT_A_TIME }, (_, at) => planOf(`job ${at}`))
  const spawnMs: number[] = []
  await lane.pause()
  await inLanes(plans, 1, async (plan, at) => {
    const before = performance.now()
    await stage.spawn(at, plan, PLAIN)
    spawnMs.push(performance.now() - before)
  })
  const resumedAt = performance.now()
  await lane.resume()
  await stage.untilAllCompleted()
  return { spawnMs, workMs: performance.now() - resumedAt }
}

function jobsPerS(slices: readonly Slice[]): number {
  return ((slices.length * AT_A_TIME) / slices.reduce((sum, { workMs }) => sum + workMs, 0)) * 1_000
}

function spawnTimes(slices: readonly Slice[]): number[] {
  return slices.flatMap(({ spawnMs }) => spawnMs)
}

function chartsOf(sizes: readonly number[]): Chart[] {
  const overSizes = (figure: string) => sizes.map((x) => ({ x, figure: `${figure}At${x}` }))
  const axis = { kind: 'lines', xTitle: 'finished jobs in Postgres', xBase: 10 } as const
  return [
    {
      ...axis,
      title: 'Jobs a second',
      unit: 'jobs/s',
      lines: [{ label: 'one worker', points: overSizes('jobsPerS') }],
    },
    {
      ...axis,
      title: 'A spawn',
      unit: 'ms',
      lines: [
        { label: 'p50', points: overSizes('spawnP50Ms') },
        { label: 'p99', points: overSizes('spawnP99Ms') },
      ],
    },
    {
      kind: 'lines',
      title: `Jobs a second, with ${sizes.at(-1)} finished jobs`,
      unit: 'jobs/s',
      xTitle: 'workers',
      xBase: 2,
      lines: [{ label: 'all together', points: WORKERS.map((x) => ({ x, figure: `jobsPerSWithWorkers${x}` })) }],
    },
  ]
}
