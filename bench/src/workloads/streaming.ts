// Many agents that stream at once in one worker. They are spawned while the queue is paused, so that the wall time is that
// of their work: from the moment when the worker may take them until the last one has ended.
import { seriesIn } from '@offshoot/testing/metrics'
import type { TestProcess } from '@offshoot/testing/processes'
import { type BareRunner, type BenchStage, inLanes, openBenchStage, PLAIN, SPAWN_LANES } from '../bench-stage.ts'
import type { Chart } from '../chart.ts'
import { costOf, forgetPeak, peakMiB, residentMiB } from '../meters.ts'
import { type AgentPlan, planOf, sharedNow } from '../plan.ts'
import type { Workload } from '../workload.ts'

const AGENTS = 2_000
const TOKENS = 100
const EVERY_MS = 50
/** What even an infinitely fast runner takes beyond the tokens: the call, its first chunk, the end. */
const IDEAL_BEYOND_TOKENS_MS = 100

interface Size {
  agents: number
  tokens: number
}

export const streaming: Workload = {
  name: 'streaming',
  about: `${AGENTS} agents at once in one worker, ${TOKENS} tokens each over ${(TOKENS * EVERY_MS) / 1_000} s`,
  warmUps: 1,
  async open({ quick }) {
    const size: Size = quick ? { agents: 100, tokens: 20 } : { agents: AGENTS, tokens: TOKENS }
    const stage = await openBenchStage({ WORKER_CONCURRENCY: String(size.agents) })
    const worker = await stage.startWorker()
    const bare = await stage.startBareRunner()
    const plans = Array.from({ length: size.agents }, (_, at) =>
      planOf(`agent ${at}`, { tokens: size.tokens, everyMs: EVERY_MS }),
    )
    return {
      async round() {
        await stage.model.forget()
        const ofOffshoot = await runOffshoot(stage, worker, plans)
        const ofBare = await runBare(stage, bare, plans)
        const idealWallMs = size.tokens * EVERY_MS + IDEAL_BEYOND_TOKENS_MS
        return {
          ...ofOffshoot,
          ...ofBare,
          wallRatioToIdeal: ofOffshoot.wallMs / idealWallMs,
          wallRatioToBare: ofOffshoot.wallMs / ofBare.bareWallMs,
          cpuPerTokenRatioToBare: ofOffshoot.cpuUsPerToken / ofBare.bareCpuUsPerToken,
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
    title: 'Until all have ended',
    unit: 'ms',
    bars: [
      { label: 'Offshoot', figure: 'wallMs' },
      { label: 'bare streamText', figure: 'bareWallMs' },
    ],
  },
  {
    kind: 'bars',
    title: 'CPU a token',
    unit: 'µs',
    bars: [
      { label: 'Offshoot: worker', figure: 'cpuUsPerToken' },
      { label: 'bare streamText', figure: 'bareCpuUsPerToken' },
      { label: 'mock model', figure: 'modelCpuUsPerToken' },
    ],
  },
  {
    kind: 'bars',
    title: 'Memory an agent, at its peak',
    unit: 'KiB',
    bars: [
      { label: 'Offshoot: worker', figure: 'kiBPerAgent' },
      { label: 'bare streamText', figure: 'bareKiBPerAgent' },
    ],
  },
]

async function runOffshoot(stage: BenchStage, worker: TestProcess, plans: readonly AgentPlan[]) {
  const lane = stage.runtime.deliveries.lane('default')
  await lane.pause()
  await inLanes(plans, SPAWN_LANES, async (plan, at) => {
    await stage.spawn(at, plan, PLAIN)
  })
  await takeLagP99Ms(worker)
  const startedAt = sharedNow()
  const { wallMs, cpuMs, kiBPerAgent } = await costOfAgents(stage, worker, plans, async () => {
    await lane.resume()
    await stage.untilAllCompleted()
  })
  const tokens = tokensOf(plans)
  const lastCallAt = Math.max(...(await stage.model.journal()).map(({ at }) => at))
  return {
    wallMs,
    untilLastCallMs: lastCallAt - startedAt,
    eventLoopDelayP99Ms: await takeLagP99Ms(worker),
    cpuUsPerToken: (cpuMs.runner / tokens) * 1_000,
    modelCpuUsPerToken: (cpuMs.model / tokens) * 1_000,
    modelCpuShare: cpuMs.model / wallMs,
    kiBPerAgent,
  }
}

async function runBare(stage: BenchStage, bare: BareRunner, plans: readonly AgentPlan[]) {
  const { value, cpuMs, kiBPerAgent } = await costOfAgents(stage, bare.process, plans, () =>
    bare.run(plans, plans.length),
  )
  return {
    bareWallMs: value.wallMs,
    bareEventLoopDelayP99Ms: value.eventLoopDelayP99Ms,
    bareCpuUsPerToken: (cpuMs.runner / tokensOf(plans)) * 1_000,
    bareModelCpuShare: cpuMs.model / value.wallMs,
    bareKiBPerAgent: kiBPerAgent,
  }
}

async function costOfAgents<Value>(
  { model }: BenchStage,
  runner: TestProcess,
  plans: readonly AgentPlan[],
  work: () => Promise<Value>,
) {
  await forgetPeak(runner.pid)
  const before = await residentMiB(runner.pid)
  const cost = await costOf({ runner: runner.pid, model: model.pid }, work)
  return { ...cost, kiBPerAgent: (((await peakMiB(runner.pid)) - before) / plans.length) * 1_024 }
}

function tokensOf(plans: readonly AgentPlan[]): number {
  return plans.reduce((sum, { tokens }) => sum + tokens, 0)
}

/** Since it was last asked: a scrape begins the histogram anew. It includes the 10 ms at which the delay is sampled. */
async function takeLagP99Ms(worker: TestProcess): Promise<number> {
  const scraped = await (await fetch(`${worker.url}/metrics`)).text()
  return (seriesIn(scraped, 'nodejs_eventloop_lag_p99_seconds') ?? NaN) * 1_000
}
