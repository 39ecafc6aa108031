// What a viewer over HTTP waits for. First the first token of agents with one viewer each, one after the other: from the
// model to the viewer. Then many viewers of a few agents: what they cost the API, and how late each token comes. The
// baseline hears its tokens in its own process.
import { setTimeout as delay } from 'node:timers/promises'
import { createApiKey } from '@offshoot/shared/db/users'
import type { TestProcess } from '@offshoot/testing/processes'
import { waitUntil } from '@offshoot/testing/wait-until'
import {
  type BareRunner,
  type BenchStage,
  inLanes,
  openBenchStage,
  PLAIN,
  SPAWN_LANES,
  userOf,
} from '../bench-stage.ts'
import type { Chart } from '../chart.ts'
import { costOf, forgetPeak, peakMiB, residentMiB } from '../meters.ts'
import { type AgentPlan, planOf } from '../plan.ts'
import type { ViewersOrder, ViewersReport } from '../viewers.ts'
import { percentile, type Workload } from '../workload.ts'

/** Agents whose first token is waited for. */
const FIRSTS = 60
/** Between two of them: time for the whole of a short answer. */
const RELEASE_EVERY_MS = 150
/** As ordinary models do it: the first token comes together with the text's start. */
const SHORT = { tokens: 3, everyMs: 50, heldStep: 0, firstAtOnce: true, stamped: true }
const CROWD = { agents: 20, viewersEach: 100, tokens: 30, everyMs: 1_000 }
const QUICK_CROWD = { agents: 4, viewersEach: 10, tokens: 5, everyMs: 500 }
const WITHIN_MS = 180_000

interface Audience {
  key: string
  viewers: TestProcess
}

export const watch: Workload = {
  name: 'watch',
  about: `the first token of ${FIRSTS} agents, and ${CROWD.agents * CROWD.viewersEach} viewers of ${CROWD.agents} agents`,
  warmUps: 1,
  async open({ quick }) {
    const stage = await openBenchStage()
    await stage.startWorker()
    const api = await stage.startApi()
    const bare = await stage.startBareRunner()
    const audience: Audience = {
      key: await createApiKey(stage.runtime.database, userOf(0)),
      viewers: await stage.start('viewers.ts'),
    }
    const firsts = quick ? FIRSTS / 6 : FIRSTS
    const crowd = quick ? QUICK_CROWD : CROWD
    return {
      async round() {
        const firstMs = await watchFirsts(stage, { api, audience, plans: plansOf(firsts, SHORT) })
        const bareMs = await bareFirsts(bare, plansOf(firsts, { ...SHORT, heldStep: null }))
        return {
          firstByteP50Ms: percentile(firstMs, 0.5),
          firstByteP99Ms: percentile(firstMs, 0.99),
          // Whole: nothing is collected before the first token.
          aboveBatchingP50Ms: percentile(firstMs, 0.5),
          bareFirstTokenP50Ms: percentile(bareMs, 0.5),
          bareFirstTokenP99Ms: percentile(bareMs, 0.99),
          ...(await watchCrowd(stage, audience, crowd)),
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
    title: 'From the model’s first token to the viewer',
    unit: 'ms',
    bars: [
      { label: 'Offshoot, p50', figure: 'firstByteP50Ms' },
      { label: 'Offshoot, p99', figure: 'firstByteP99Ms' },
      { label: 'bare streamText, no viewer, p50', figure: 'bareFirstTokenP50Ms' },
      { label: 'bare streamText, no viewer, p99', figure: 'bareFirstTokenP99Ms' },
    ],
  },
  {
    kind: 'bars',
    title: 'Many viewers: from the model’s token to the viewer',
    unit: 'ms',
    bars: [
      { label: 'Offshoot, p50', figure: 'crowdDelayP50Ms' },
      { label: 'Offshoot, p99', figure: 'crowdDelayP99Ms' },
    ],
  },
  {
    kind: 'bars',
    title: 'Many viewers: the API’s memory a viewer',
    unit: 'KiB',
    bars: [
      { label: 'Offshoot: all are connected', figure: 'apiKiBPerViewer' },
      { label: 'Offshoot: at its peak', figure: 'apiPeakKiBPerViewer' },
    ],
  },
]

function plansOf(count: number, more: Partial<AgentPlan>): AgentPlan[] {
  return Array.from({ length: count }, (_, at) => planOf(`agent ${at}`, more))
}

/** How long the first token of each agent takes to its viewer. */
async function watchFirsts(
  stage: BenchStage,
  { api, audience, plans }: { api: TestProcess; audience: Audience; plans: readonly AgentPlan[] },
): Promise<number[]> {
  const urls = await spawnHeld(stage, api, plans)
  const watching = await openViewers(
    audience,
    urls.map((url) => ({ url, viewers: 1 })),
  )
  for (const { name } of plans) {
    await stage.model.release([name])
    await delay(RELEASE_EVERY_MS)
  }
  const { firstDelaysMs } = await watching.ended()
  if (firstDelaysMs.length !== plans.length) throw new Error('a viewer has seen no token')
  await stage.untilAllCompleted()
  return firstDelaysMs
}

/** The same without viewers, and without anything between. */
async function bareFirsts(bare: BareRunner, plans: readonly AgentPlan[]): Promise<number[]> {
  return (await bare.run(plans, 1)).firstTokenDelaysMs
}

/** On an API of its own, whose memory nobody has used before. */
async function watchCrowd(stage: BenchStage, audience: Audience, crowd: typeof CROWD) {
  const { agents, viewersEach, tokens, everyMs } = crowd
  const api = await stage.startApi()
  const plans = plansOf(agents, { tokens, everyMs, heldStep: 0, stamped: true })
  const urls = await spawnHeld(stage, api, plans)
  const viewers = agents * viewersEach
  const before = await residentMiB(api.pid)
  await forgetPeak(api.pid)
  const watching = await openViewers(
    audience,
    urls.map((url) => ({ url, viewers: viewersEach })),
  )
  const connected = await residentMiB(api.pid)
  const pids = { api: api.pid, viewers: audience.viewers.pid, model: stage.model.pid }
  const { value, wallMs, cpuMs } = await costOf(pids, async () => {
    await stage.model.release(plans.map(({ name }) => name))
    return watching.ended()
  })
  const peak = await peakMiB(api.pid)
  if (value.delaysMs.length !== viewers * tokens)
    throw new Error(`viewers have seen ${value.delaysMs.length} of ${viewers * tokens} tokens`)
  await stage.untilAllCompleted()
  await api.stop()
  const kiBPerViewer = (MiB: number) => ((MiB - before) / viewers) * 1_024
  return {
    crowdDelayP50Ms: percentile(value.delaysMs, 0.5),
    crowdDelayP99Ms: percentile(value.delaysMs, 0.99),
    apiKiBPerViewer: kiBPerViewer(connected),
    apiPeakKiBPerViewer: kiBPerViewer(peak),
    apiCpuUsPerDeliveredToken: (cpuMs.api / value.delaysMs.length) * 1_000,
    viewersCpuShare: cpuMs.viewers / wallMs,
    modelCpuShare: cpuMs.model / wallMs,
  }
}

/** Spawns agents whose model call is not answered yet, and answers the addresses of their streams. */
async function spawnHeld(stage: BenchStage, api: TestProcess, plans: readonly AgentPlan[]): Promise<string[]> {
  await stage.model.forget()
  const urls: string[] = []
  await inLanes(plans, SPAWN_LANES, async (plan, at) => {
    // All of the one user whose key the viewers have.
    const { id } = await stage.spawn(0, plan, PLAIN)
    urls[at] = `${api.url}/v1/agents/${id}/stream`
  })
  const allCalled = async () => (await stage.model.journal()).length === plans.length
  await waitUntil(allCalled, { within: WITHIN_MS, what: 'the model call of all agents' })
  return urls
}

/** Resolves when all are connected. */
async function openViewers({ key, viewers }: Audience, streams: ViewersOrder['streams']) {
  const before = viewers.told().length
  let endedEarly = false
  void viewers.exited.then(() => (endedEarly = true))
  const told = (at: number) => () => {
    if (endedEarly) throw new Error(`the viewers have ended:\n${viewers.output()}`)
    return viewers.told()[before + at]
  }
  viewers.send({ key, streams } satisfies ViewersOrder)
  await waitUntil(told(0), { within: WITHIN_MS, what: 'the connection of all viewers' })
  return {
    async ended(): Promise<ViewersReport> {
      const answer = await waitUntil(told(1), { within: WITHIN_MS, what: 'the end of all streams' })
      return (answer as { report: ViewersReport }).report
    },
  }
}
