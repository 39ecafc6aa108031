// Async spawns of a 1-step agent that says 20 tokens at once, 100 at a time in one worker.
import { setTimeout as delay } from 'node:timers/promises'
import type { Queue } from 'bullmq'
import {
  type BareRunner,
  type BenchStage,
  type BullmqRunner,
  inLanes,
  LOOK_EVERY_MS,
  openBenchStage,
  PLAIN,
  SPAWN_LANES,
} from '../bench-stage.ts'
import type { Chart } from '../chart.ts'
import { costOf, forgetPeak, peakMiB } from '../meters.ts'
import { type AgentPlan, planOf } from '../plan.ts'
import type { Workload } from '../workload.ts'

const JOBS = 2_000
const CONCURRENCY = 100

export const throughput: Workload = {
  name: 'throughput',
  about: `${JOBS} async spawns of a 1-step agent, concurrency ${CONCURRENCY}, one worker`,
  warmUps: 1,
  async open({ quick }) {
    const stage = await openBenchStage({ WORKER_CONCURRENCY: String(CONCURRENCY) })
    const worker = await stage.startWorker()
    const bare = await stage.startBareRunner()
    const bullmq = await stage.startBullmq(CONCURRENCY)
    const plans = Array.from({ length: quick ? JOBS / 20 : JOBS }, (_, at) => planOf(`job ${at}`))
    return {
      async round() {
        await stage.model.forget()
        const ofOffshoot = await runOffshoot(stage, worker.pid, plans)
        const ofBare = await runBare(bare, plans)
        const ofBullmq = await runBullmq(stage, bullmq, plans)
        return {
          ...ofOffshoot,
          ...ofBare,
          ...ofBullmq,
          workerCpuRatioToBare: ofOffshoot.workerCpuMsPerJob / ofBare.bareCpuMsPerJob,
          jobsPerSRatioToBullmq: ofOffshoot.jobsPerS / ofBullmq.bullmqJobsPerS,
        }
      },
      charts: CHARTS,
      close: stage.close,
    }
  },
}

const CHARTS: readonly Chart[] = [
  {
    kind: 'bars',
    title: 'Jobs a second',
    unit: 'jobs/s',
    bars: [
      { label: 'Offshoot', figure: 'jobsPerS' },
      { label: 'raw BullMQ', figure: 'bullmqJobsPerS' },
      { label: 'bare streamText', figure: 'bareJobsPerS' },
    ],
  },
  {
    kind: 'bars',
    title: 'CPU a job',
    unit: 'ms',
    bars: [
      { label: 'Offshoot: worker', figure: 'workerCpuMsPerJob' },
      { label: 'raw BullMQ: worker', figure: 'bullmqWorkerCpuMsPerJob' },
      { label: 'bare streamText', figure: 'bareCpuMsPerJob' },
      { label: 'Offshoot: host that spawns', figure: 'hostCpuMsPerJob' },
      { label: 'mock model', figure: 'modelCpuMsPerJob' },
    ],
  },
]

async function runOffshoot(stage: BenchStage, workerPid: number, plans: readonly AgentPlan[]) {
  const { meter, model } = stage
  const commitsBefore = await meter.commits()
  const redisBefore = await meter.redisCommands()
  await forgetPeak(workerPid)
  const { value, wallMs, cpuMs } = await costOf({ worker: workerPid, model: model.pid }, async () => {
    const startedAt = performance.now()
    await inLanes(plans, SPAWN_LANES, async (plan, at) => {
      await stage.spawn(at, plan, PLAIN)
    })
    const spawnedMs = performance.now() - startedAt
    await stage.untilAllCompleted()
    return { spawnedMs }
  })
  const redisCommands = (await meter.redisCommands()) - redisBefore
  const commits = (await meter.commits()) - commitsBefore
  return {
    jobsPerS: (plans.length / wallMs) * 1_000,
    spawnsPerS: (plans.length / value.spawnedMs) * 1_000,
    workerCpuMsPerJob: cpuMs.worker / plans.length,
    hostCpuMsPerJob: cpuMs.host / plans.length,
    modelCpuMsPerJob: cpuMs.model / plans.length,
    modelCpuShare: cpuMs.model / wallMs,
    workerPeakMiB: await peakMiB(workerPid),
    redisCommandsPerJob: redisCommands / plans.length,
    commitsPerJob: commits / plans.length,
  }
}

async function runBare(bare: BareRunner, plans: readonly AgentPlan[]) {
  const { value, cpuMs } = await costOf({ bare: bare.process.pid }, () => bare.run(plans, CONCURRENCY))
  return { bareJobsPerS: (plans.length / value.wallMs) * 1_000, bareCpuMsPerJob: cpuMs.bare / plans.length }
}

async function runBullmq({ meter }: BenchStage, { process: runner, queue }: BullmqRunner, plans: readonly AgentPlan[]) {
  const redisBefore = await meter.redisCommands()
  const { wallMs, cpuMs } = await costOf({ runner: runner.pid }, async () => {
    await inLanes(plans, SPAWN_LANES, async (plan) => {
      await queue.add('agent', { message: JSON.stringify(plan) }, { attempts: 1 })
    })
    await untilDone(queue)
  })
  return {
    bullmqJobsPerS: (plans.length / wallMs) * 1_000,
    bullmqWorkerCpuMsPerJob: cpuMs.runner / plans.length,
    bullmqRedisCommandsPerJob: ((await meter.redisCommands()) - redisBefore) / plans.length,
  }
}

async function untilDone(queue: Queue): Promise<void> {
  const unfinished = () => queue.getJobCountByTypes('waiting', 'active', 'prioritized')
  while ((await unfinished()) > 0) await delay(LOOK_EVERY_MS)
}
