// Real worker processes on a stage, to be killed and frozen.
import { startWorkerProcess, type TestProcess } from './processes.ts'
import type { TestStage } from './test-stage.ts'
import { waitUntil } from './wait-until.ts'

export interface Fleet {
  /** Starts as many as have ended since. */
  replenish(): Promise<void>
  /** Starts one more, for good. */
  grow(): Promise<void>
  /** From now on each that ends is started again, as whoever runs workers does it. */
  restart(): void
  /** Those that run. */
  processes(): TestProcess[]
  /** The process that runs a job now. */
  workerOf(jobId: string): Promise<TestProcess>
  /** All but one. */
  others(process: TestProcess): TestProcess[]
  stop(): Promise<void>
}

export async function startFleet(stage: TestStage, size: number): Promise<Fleet> {
  let processes: TestProcess[] = []
  let wanted = size
  let restarts = false
  const starting = new Set<Promise<void>>()

  async function replenish(): Promise<void> {
    const missing = wanted - processes.length - starting.size
    await Promise.all(Array.from({ length: missing }, () => startOne()))
  }

  function startOne(): Promise<void> {
    const started = startWorkerProcess(stage.environment).then((process) => {
      processes.push(process)
      void process.exited.then(() => {
        processes = processes.filter((each) => each !== process)
        if (restarts) void startOne()
      })
    })
    starting.add(started)
    return started.finally(() => starting.delete(started))
  }

  await replenish()
  return {
    replenish,
    grow() {
      wanted += 1
      return replenish()
    },
    restart() {
      restarts = true
    },
    processes: () => processes,
    workerOf: (jobId) =>
      waitUntil(async () => {
        const { database } = stage.runtime
        const job = await database.agentJob.findUnique({ where: { id: jobId }, select: { workerId: true } })
        const worker = await database.worker.findUnique({ where: { id: job?.workerId ?? '' } })
        return processes.find(({ pid }) => pid === worker?.pid)
      }),
    others: (process) => processes.filter((each) => each !== process),
    async stop() {
      restarts = false
      await Promise.allSettled(starting)
      for (const process of processes) process.kill('SIGCONT')
      await Promise.all(processes.map((process) => process.stop()))
    },
  }
}
