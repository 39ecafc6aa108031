// What a workload stands on: a mock model in its own process, Offshoot with as many workers as it wants, and the baselines.
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { createOffshoot, type Offshoot } from '@offshoot/shared'
import type { AgentHandle } from '@offshoot/shared/agent-handle'
import { sql } from '@offshoot/shared/db/database'
import type { SpawnContext } from '@offshoot/shared/spawn-context'
import { startApiProcess, startProcess, startWorkerProcess, type TestProcess } from '@offshoot/testing/processes'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { Queue } from 'bullmq'
import type { BareOrder, BareReport } from './bare-runner.ts'
import { openServiceMeter, type ServiceMeter } from './meters.ts'
import type { JournalEntry } from './model-server.ts'
import type { AgentPlan } from './plan.ts'

export interface BenchStage extends TestStage {
  model: MockModel
  offshoot: Offshoot
  meter: ServiceMeter
  /** With `/metrics` at its `url`. */
  startWorker(environment?: Record<string, string>): Promise<TestProcess>
  startApi(): Promise<TestProcess>
  /** Runs a program of this folder. */
  start(file: string): Promise<TestProcess>
  startBareRunner(): Promise<BareRunner>
  startBullmq(concurrency: number, more?: { lockMs?: number }): Promise<BullmqRunner>
  /** Spawns an async agent for a plan. @throws Error when the spawn is refused */
  spawn(at: number, plan: AgentPlan, bot?: typeof AGENT): Promise<AgentHandle>
  /** Resolves when no job is live. @throws Error after ten minutes */
  untilIdle(): Promise<void>
  /** The same. @throws Error when a job has not completed: what a failing job costs is no figure */
  untilAllCompleted(): Promise<void>
}

export interface MockModel {
  pid: number
  journal(): Promise<JournalEntry[]>
  /** Empties the journal. */
  forget(): Promise<void>
  /** Lets it answer the held step of these agents. */
  release(names: readonly string[]): Promise<void>
}

export interface BareRunner {
  process: TestProcess
  run(plans: readonly AgentPlan[], concurrency: number): Promise<BareReport>
  abort(name: string): void
}

export interface BullmqRunner {
  process: TestProcess
  queue: Queue
}

/** The settings of the fault suite, so that what is measured here is what is proven there. */
export const LOCK_MS = 2_000
const ENVIRONMENT = {
  WORKER_HEARTBEAT_MS: '500',
  WORKER_LOCK_MS: String(LOCK_MS),
  WORKER_HEALTH_PORT: '0',
  OFFSHOOT_CONFIG: program('bench.offshoot.ts'),
}

/** As in the image (Dockerfile; why: docs/operations/capacity.md). The baselines run as Node runs by itself. */
const WORKER_FLAGS = ['--min-semi-space-size=64', '--max-semi-space-size=64', '--v8-pool-size=1']

/** Seldom: looking costs commits, which are counted. */
export const LOOK_EVERY_MS = 50
const IDLE_WITHIN_MS = 600_000

/** With everything that was started so far ended when it does not come to its end. */
export async function openBenchStage(environment: Record<string, string> = {}): Promise<BenchStage> {
  const closers: (() => Promise<unknown>)[] = []
  const close = async () => {
    for (const each of closers.splice(0).toReversed()) await each()
  }
  try {
    return { ...(await open(environment, (closer) => void closers.push(closer))), close }
  } catch (error) {
    await close()
    throw error
  }
}

async function open(environment: Record<string, string>, onClose: (closer: () => Promise<unknown>) => void) {
  const started = async (starting: Promise<TestProcess>) => {
    const process = await starting
    onClose(process.stop)
    return process
  }
  const model = await started(startProcess(program('model-server.ts'), {}))
  const stage = await openTestStage({
    environment: { ...ENVIRONMENT, OPENAI_BASE_URL: `${model.url}/v1`, ...environment },
  })
  onClose(stage.close)
  await stage.putBot('agent', { toolNames: ['spawnAgent', 'work'] })
  await stage.putBot('plain', { toolNames: [] })
  const offshoot = await createOffshoot({ environment: stage.environment })
  onClose(offshoot.close)
  const redisUrl = stage.config.REDIS_URL ?? ''
  const meter = await openServiceMeter({ databaseUrl: stage.config.DATABASE_URL, redisUrl })
  onClose(meter.close)
  const prefix = `${stage.config.QUEUE_PREFIX}-raw`
  const baseline = { BENCH_MODEL_URL: model.url, REDIS_URL: redisUrl, QUEUE_PREFIX: prefix }
  const start = (file: string, more: Record<string, string> = {}) =>
    started(startProcess(program(file), { ...baseline, ...more }))
  return {
    ...stage,
    model: mockModel(model),
    offshoot,
    meter,
    startWorker: (more: Record<string, string> = {}) =>
      started(startWorkerProcess({ ...stage.environment, ...more }, WORKER_FLAGS)),
    startApi: () => started(startApiProcess(stage.environment)),
    start: (file: string) => start(file),
    startBareRunner: async () => bareRunner(await start('bare-runner.ts')),
    async startBullmq(concurrency: number, { lockMs }: { lockMs?: number } = {}) {
      const lock = lockMs === undefined ? {} : { BULLMQ_LOCK_MS: String(lockMs) }
      const process = await start('bullmq-runner.ts', { WORKER_CONCURRENCY: String(concurrency), ...lock })
      const queue = new Queue('bench', { connection: { url: redisUrl }, prefix })
      onClose(() => queue.close())
      return { process, queue }
    },
    async spawn(at: number, plan: AgentPlan, bot = AGENT) {
      const handle = await offshoot.spawn(callerOf(at), { bot, message: JSON.stringify(plan), mode: 'async' })
      if (handle.id === '') throw new Error(`the spawn was refused: ${await handle.error()}`)
      return handle
    },
    ...waits(stage),
  }
}

function program(file: string): string {
  return path.join(import.meta.dirname, file)
}

function mockModel({ pid, url }: TestProcess): MockModel {
  return {
    pid,
    journal: async () => (await (await fetch(`${url}/journal`)).json()) as JournalEntry[],
    forget: async () => void (await fetch(`${url}/forget`)),
    release: async (names) => void (await fetch(`${url}/release`, { method: 'POST', body: JSON.stringify(names) })),
  }
}

function bareRunner(process: TestProcess): BareRunner {
  const order = (given: BareOrder) => process.send(given)
  let ended = false
  void process.exited.then(() => (ended = true))
  return {
    process,
    async run(plans, concurrency) {
      const before = process.told().length
      order({ run: { messages: plans.map((plan) => JSON.stringify(plan)), concurrency } })
      const look = () => {
        if (ended) throw new Error(`the bare runner has ended:\n${process.output()}`)
        return process.told()[before]
      }
      const told = await waitUntil(look, { within: IDLE_WITHIN_MS, what: 'the bare run' })
      return (told as { report: BareReport }).report
    },
    abort: (name) => order({ abort: name }),
  }
}

function waits({ runtime: { database } }: TestStage) {
  const openedAt = new Date()
  async function untilIdle(): Promise<void> {
    const until = performance.now() + IDLE_WITHIN_MS
    for (;;) {
      // With the states spelled out, so that the partial indexes serve, however many jobs have ended.
      const live = await database.$queryRaw<{ id: string }[]>(sql`
        select "id" from "offshoot"."AgentJob" where "state" in ('pending', 'running') limit 1`)
      if (live[0] === undefined) return
      if (performance.now() > until) throw new Error(`job ${live[0].id} is live after ${IDLE_WITHIN_MS} ms`)
      await delay(LOOK_EVERY_MS)
    }
  }
  async function untilAllCompleted(): Promise<void> {
    await untilIdle()
    const wrong = await database.$queryRaw<{ id: string; state: string; error: string | null }[]>(sql`
      select "id", "state", "error" from "offshoot"."AgentJob"
      where "id" = "rootJobId" and "finishedAt" >= ${openedAt} and "state" <> 'completed' limit 1`)
    if (wrong[0] !== undefined) throw new Error(`job ${wrong[0].id} ended as ${wrong[0].state}: ${wrong[0].error}`)
  }
  return { untilIdle, untilAllCompleted }
}

/** A hundred users, none of whom comes near the cap of unfinished jobs. */
export function callerOf(at: number): SpawnContext {
  const userId = userOf(at)
  return {
    userId,
    parentConvoId: `chat-${at % 100}`,
    parentConvoOwnerId: userId,
    parentConvoSpaceId: null,
    spawnDepth: 0,
  }
}

export function userOf(at: number): string {
  return `user-${at % 100}`
}

const AGENT = { botGroup: 'forge', botHandle: 'agent' }
/** Without tools. */
export const PLAIN = { botGroup: 'forge', botHandle: 'plain' }

/** Spawns under way at once: as many as a busy host has. */
export const SPAWN_LANES = 16

/** Calls `work` for each item, in their order, so many at a time. */
export async function inLanes<Item>(
  items: readonly Item[],
  lanes: number,
  work: (item: Item, at: number) => Promise<void>,
): Promise<void> {
  const left = items.entries()
  const lane = async () => {
    for (const [at, item] of left) await work(item, at)
  }
  await Promise.all(Array.from({ length: lanes }, lane))
}
