// 2,000 async spawns of a 1-step agent that says 20 tokens at once, 100 at a time in one worker.
import { setTimeout as delay } from 'node:timers/promises'
import type { Queue } from 'bullmq'
import { type BenchStage, callerOf, inLanes, LOOK_EVERY_MS, openBenchStage, PLAIN } from '../bench-stage.ts'
import { cpuMs, peakMiB } from '../meters.ts'
import { planOf } from '../plan.ts'
import type { Workload } from '../workload.ts'

const JOBS = 2_000
const CONCURRENCY = 100
/** Spawns under way at once: as many as a busy host has. */
const SPAWN_LANES = 16

export const throughput: Workload = {
  name: 'throughput',
  about: `${JOBS} async spawns of a 1-step agent, concurrency ${CONCURRENCY}, one worker`,
  warmUps: 1,
  async open() {
    const stage = await openBenchStage({ WORKER_CONCURRENCY: String(CONCURRENCY) })
    const worker = await stage.startWorker()
    const bare = await stage.startBareRunner()
    const bullmq = await stage.startBullmq(CONCURRENCY)
    const plans = Array.from({ length: JOBS }, (_, at) => planOf(`job ${at}`))
    return {
      async round() {
        const ofOffshoot = await runOffshoot(stage, worker.pid)
        const bareCpuBefore = await cpuMs(bare.process.pid)
        const { wallMs } = await bare.run(plans, CONCURRENCY)
        const bareCpu = (await cpuMs(bare.process.pid)) - bareCpuBefore
        const ofBullmq = await runBullmq(stage, bullmq)
        const bareCpuPerJob = bareCpu / JOBS
        return {
          ...ofOffshoot,
          bareCpuMsPerJob: bareCpuPerJob,
          bareJobsPerS: (JOBS / wallMs) * 1_000,
          ...ofBullmq,
          workerCpuRatioToBare: ofOffshoot.workerCpuMsPerJob / bareCpuPerJob,
          jobsPerSRatioToBullmq: ofOffshoot.jobsPerS / ofBullmq.bullmqJobsPerS,
        }
      },
      async close() {
        await bullmq.queue.close()
        await stage.close()
      },
    }
  },
}

async function runOffshoot(stage: BenchStage, workerPid: number) {
  const { meter, model, offshoot } = stage
  const commitsBefore = await meter.commits()
  const redisBefore = await meter.redisCommands()
  const before = [await cpuMs(workerPid), await cpuMs(process.pid), await cpuMs(model.pid)]
  const startedAt = performance.now()
  await inLanes(JOBS, SPAWN_LANES, async (at) => {
    const message = JSON.stringify(planOf(`job ${at}`))
    const handle = await offshoot.spawn(callerOf(at), { bot: PLAIN, message, mode: 'async' })
    if (handle.id === '') throw new Error(`the spawn was refused: ${await handle.error()}`)
  })
  const spawnedMs = performance.now() - startedAt
  await stage.untilIdle()
  const wallMs = performance.now() - startedAt
  const after = [await cpuMs(workerPid), await cpuMs(process.pid), await cpuMs(model.pid)]
  const [workerCpu = NaN, hostCpu = NaN, modelCpu = NaN] = after.map((value, at) => value - (before[at] ?? NaN))
  const redisCommands = (await meter.redisCommands()) - redisBefore
  const commits = (await meter.commits()) - commitsBefore
  return {
    jobsPerS: (JOBS / wallMs) * 1_000,
    spawnsPerS: (JOBS / spawnedMs) * 1_000,
    workerCpuMsPerJob: workerCpu / JOBS,
    hostCpuMsPerJob: hostCpu / JOBS,
    modelCpuMsPerJob: modelCpu / JOBS,
    workerPeakMiB: await peakMiB(workerPid),
    redisCommandsPerJob: redisCommands / JOBS,
    commitsPerJob: commits / JOBS,
  }
}

async function runBullmq(
  { meter }: BenchStage,
  { process: runner, queue }: Awaited<ReturnType<BenchStage['startBullmq']>>,
) {
  const redisBefore = await meter.redisCommands()
  const before = await cpuMs(runner.pid)
  const startedAt = performance.now()
  await inLanes(JOBS, SPAWN_LANES, async (at) => {
    await queue.add('agent', { message: JSON.stringify(planOf(`job ${at}`)) }, { attempts: 1 })
  })
  await untilDone(queue)
  const wallMs = performance.now() - startedAt
  return {
    bullmqJobsPerS: (JOBS / wallMs) * 1_000,
    bullmqWorkerCpuMsPerJob: ((await cpuMs(runner.pid)) - before) / JOBS,
    bullmqRedisCommandsPerJob: ((await meter.redisCommands()) - redisBefore) / JOBS,
  }
}

async function untilDone(queue: Queue): Promise<void> {
  const unfinished = () => queue.getJobCountByTypes('waiting', 'active', 'prioritized')
  while ((await unfinished()) > 0) await delay(LOOK_EVERY_MS)
}
