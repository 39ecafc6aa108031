// Real worker processes on a stage, to be killed and frozen.
import { startWorkerProcess, type TestProcess } from './processes.ts'
import type { TestStage } from './test-stage.ts'
import { waitUntil } from './wait-until.ts'

export interface Fleet {
  /** Starts as many as have ended since. */
  replenish(): Promise<void>
  /** The process that runs a job now. */
  workerOf(jobId: string): Promise<TestProcess>
  /** All but one. */
  others(process: TestProcess): TestProcess[]
  stop(): Promise<void>
}

export async function startFleet(stage: TestStage, size: number): Promise<Fleet> {
  let processes: TestProcess[] = []

  async function replenish(): Promise<void> {
    const missing = Array.from({ length: size - processes.length }, () => startOne())
    await Promise.all(missing)
  }

  async function startOne(): Promise<void> {
    const process = await startWorkerProcess(stage.environment)
    processes.push(process)
    void process.exited.then(() => (processes = processes.filter((each) => each !== process)))
  }

  await replenish()
  return {
    replenish,
    workerOf: (jobId) =>
      waitUntil(async () => {
        const { database } = stage.runtime
        const job = await database.agentJob.findUnique({ where: { id: jobId }, select: { workerId: true } })
        const worker = await database.worker.findUnique({ where: { id: job?.workerId ?? '' } })
        return processes.find(({ pid }) => pid === worker?.pid)
      }),
    others: (process) => processes.filter((each) => each !== process),
    async stop() {
      for (const process of processes) process.kill('SIGCONT')
      await Promise.all(processes.map((process) => process.stop()))
    },
  }
}
