// What a workload stands on: a mock model in its own process, Offshoot with as many workers as it wants, and the baselines.
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { createOffshoot, type Offshoot } from '@offshoot/shared'
import type { SpawnContext } from '@offshoot/shared/spawn-context'
import { startProcess, startWorkerProcess, type TestProcess } from '@offshoot/testing/processes'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { Queue } from 'bullmq'
import type { BareOrder, BareReport } from './bare-runner.ts'
import { openServiceMeter, type ServiceMeter } from './meters.ts'
import type { JournalEntry } from './model-server.ts'
import type { AgentPlan } from './plan.ts'

export interface BenchStage extends TestStage {
  model: { pid: number; journal(): Promise<JournalEntry[]>; forget(): Promise<void> }
  offshoot: Offshoot
  meter: ServiceMeter
  /** With `/metrics` at its `url`. */
  startWorker(environment?: Record<string, string>): Promise<TestProcess>
  startBareRunner(): Promise<BareRunner>
  startBullmq(concurrency: number): Promise<BullmqRunner>
  /** Resolves when no job is live. */
  untilIdle(): Promise<void>
}

export interface BareRunner {
  process: TestProcess
  run(plans: readonly AgentPlan[], concurrency: number): Promise<BareReport>
}

export interface BullmqRunner {
  process: TestProcess
  queue: Queue
}

/** The settings of the fault suite, so that what is measured here is what is proven there. */
const ENVIRONMENT = {
  WORKER_HEARTBEAT_MS: '500',
  WORKER_LOCK_MS: '2000',
  WORKER_HEALTH_PORT: '0',
  OFFSHOOT_CONFIG: path.join(import.meta.dirname, 'bench.offshoot.ts'),
}

/** Seldom: looking costs commits, which are counted. */
export const LOOK_EVERY_MS = 50

export async function openBenchStage(environment: Record<string, string> = {}): Promise<BenchStage> {
  const model = await startProcess(path.join(import.meta.dirname, 'model-server.ts'), {})
  const stage = await openTestStage({
    environment: { ...ENVIRONMENT, OPENAI_BASE_URL: `${model.url}/v1`, ...environment },
  })
  await stage.putBot('agent', { toolNames: ['spawnAgent', 'work'] })
  await stage.putBot('plain', { toolNames: [] })
  const offshoot = await createOffshoot({ environment: stage.environment })
  const meter = await openServiceMeter({
    databaseUrl: stage.config.DATABASE_URL,
    redisUrl: stage.config.REDIS_URL ?? '',
  })
  const processes: TestProcess[] = []
  const baseline = {
    BENCH_MODEL_URL: model.url,
    REDIS_URL: stage.config.REDIS_URL ?? '',
    QUEUE_PREFIX: `${stage.config.QUEUE_PREFIX}-raw`,
  }
  async function start(file: string, more: Record<string, string> = {}): Promise<TestProcess> {
    const started = await startProcess(path.join(import.meta.dirname, file), { ...baseline, ...more })
    processes.push(started)
    return started
  }
  return {
    ...stage,
    model: {
      pid: model.pid,
      journal: async () => (await (await fetch(`${model.url}/journal`)).json()) as JournalEntry[],
      forget: async () => void (await fetch(`${model.url}/forget`)),
    },
    offshoot,
    meter,
    async startWorker(more = {}) {
      const worker = await startWorkerProcess({ ...stage.environment, ...more })
      processes.push(worker)
      return worker
    },
    async startBareRunner() {
      const runner = await start('bare-runner.ts')
      return {
        process: runner,
        async run(plans, concurrency) {
          const before = runner.told().length
          const order: BareOrder = { messages: plans.map((plan) => JSON.stringify(plan)), concurrency }
          runner.send(order)
          const told = await waitUntil(() => runner.told()[before], { within: 600_000, what: 'the bare run' })
          return (told as { report: BareReport }).report
        },
      }
    },
    async startBullmq(concurrency) {
      const runner = await start('bullmq-runner.ts', { WORKER_CONCURRENCY: String(concurrency) })
      const queue = new Queue('bench', { connection: { url: baseline.REDIS_URL }, prefix: baseline.QUEUE_PREFIX })
      return { process: runner, queue }
    },
    async untilIdle() {
      while ((await countLive(stage)) > 0) await delay(LOOK_EVERY_MS)
    },
    async close() {
      await Promise.all(processes.map((each) => each.stop()))
      await meter.close()
      await offshoot.close()
      await stage.close()
      await model.stop()
    },
  }
}

async function countLive({ runtime }: TestStage): Promise<number> {
  return runtime.database.agentJob.count({ where: { state: { in: ['pending', 'running'] } } })
}

/** A hundred users, none of whom comes near the cap of unfinished jobs. */
export function callerOf(at: number): SpawnContext {
  const userId = `user-${at % 100}`
  return {
    userId,
    parentConvoId: `chat-${at % 100}`,
    parentConvoOwnerId: userId,
    parentConvoSpaceId: null,
    spawnDepth: 0,
  }
}

export const AGENT = { botGroup: 'forge', botHandle: 'agent' }
/** Without tools. */
export const PLAIN = { botGroup: 'forge', botHandle: 'plain' }

/** Calls `work` for 0 … count - 1, so many at a time. */
export async function inLanes(count: number, lanes: number, work: (at: number) => Promise<void>): Promise<void> {
  let next = 0
  const lane = async () => {
    for (let at = next++; at < count; at = next++) await work(at)
  }
  await Promise.all(Array.from({ length: Math.min(lanes, count) }, lane))
}
