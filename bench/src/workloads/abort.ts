// Agents that stream slowly in one worker are aborted, one after the other: from the call to the moment when the model sees
// its connection closed. Then again while Redis refuses pub/sub, so that the worker learns of it at its heartbeat. The
// baseline aborts in its own process, told over IPC.
import { setTimeout as delay } from 'node:timers/promises'
import { startOwnRedis } from '@offshoot/testing/own-redis'
import { redisCommand } from '@offshoot/testing/redis-command'
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
import { costOf } from '../meters.ts'
import { type AgentPlan, planOf, sharedNow } from '../plan.ts'
import { percentile, type Workload } from '../workload.ts'

const AGENTS = 200
/** While pub/sub is refused each call takes about a second to answer. */
const AGENTS_BLOCKED = 20
/** A pace at which they run for much longer than they live. */
const SLOW = { tokens: 100_000, everyMs: 200 }
const START_WITHIN_MS = 120_000

export const abort: Workload = {
  name: 'abort',
  about: `${AGENTS} running agents aborted one after the other, and ${AGENTS_BLOCKED} while pub/sub is refused`,
  warmUps: 1,
  async open({ quick }) {
    // A Redis of its own: its users' rights are changed.
    const redis = await startOwnRedis()
    const stage = await openBenchStage({ REDIS_URL: redis.url }).catch(async (error: unknown) => {
      await redis.stop()
      throw error
    })
    await stage.startWorker({ WORKER_CONCURRENCY: String(AGENTS) })
    const bare = await stage.startBareRunner()
    const plansOf = (count: number) =>
      Array.from({ length: quick ? count / 10 : count }, (_, at) => planOf(`agent ${at}`, SLOW))
    return {
      async round() {
        const {
          value: cutMs,
          wallMs,
          cpuMs,
        } = await costOf({ model: stage.model.pid }, () => abortAll(stage, plansOf(AGENTS)))
        const blockedMs = await abortAll(stage, plansOf(AGENTS_BLOCKED), {
          around: (aborts) => whilePubSubIsRefused(stage, redis.url, aborts),
          spreadMs: stage.config.WORKER_HEARTBEAT_MS,
        })
        const bareMs = await abortBare(stage, bare, plansOf(AGENTS))
        return {
          p50Ms: percentile(cutMs, 0.5),
          p99Ms: percentile(cutMs, 0.99),
          blockedP50Ms: percentile(blockedMs, 0.5),
          blockedP99Ms: percentile(blockedMs, 0.99),
          bareP50Ms: percentile(bareMs, 0.5),
          bareP99Ms: percentile(bareMs, 0.99),
          modelCpuShare: cpuMs.model / wallMs,
        }
      },
      charts: CHARTS,
      async close() {
        await stage.close()
        await redis.stop()
      },
    }
  },
}

const CHARTS: readonly Chart[] = [
  {
    kind: 'bars',
    title: 'From the abort to the model’s closed connection',
    unit: 'ms',
    bars: [
      { label: 'Offshoot, p50', figure: 'p50Ms' },
      { label: 'Offshoot, p99', figure: 'p99Ms' },
      { label: 'bare AbortController, p50', figure: 'bareP50Ms' },
      { label: 'bare AbortController, p99', figure: 'bareP99Ms' },
    ],
  },
  {
    kind: 'bars',
    title: 'The same while Redis refuses pub/sub',
    unit: 'ms',
    bars: [
      { label: 'Offshoot, p50', figure: 'blockedP50Ms' },
      { label: 'Offshoot, p99', figure: 'blockedP99Ms' },
    ],
  },
]

interface Circumstances {
  /** Something is different meanwhile. */
  around?: (aborts: () => Promise<void>) => Promise<void>
  /** A pause of at most this long before each abort, so that they do not keep step with what is regular. */
  spreadMs?: number
}

/** How long each abort took. */
async function abortAll(
  stage: BenchStage,
  plans: readonly AgentPlan[],
  { around = (aborts) => aborts(), spreadMs = 0 }: Circumstances = {},
): Promise<number[]> {
  await stage.model.forget()
  const jobIds: string[] = []
  await inLanes(plans, SPAWN_LANES, async (plan, at) => {
    jobIds[at] = (await stage.spawn(at, plan, PLAIN)).id
  })
  await untilAllStream(stage, plans)
  const askedAt = new Map<string, number>()
  await around(async () => {
    for (const [at, { name }] of plans.entries()) {
      if (spreadMs > 0) await delay(Math.random() * spreadMs)
      askedAt.set(name, sharedNow())
      await stage.offshoot.abort(userOf(at), { jobId: jobIds[at] ?? '' })
    }
    await untilAllCut(stage, plans)
  })
  await stage.untilIdle()
  return cutDelays(stage, askedAt)
}

async function abortBare(stage: BenchStage, bare: BareRunner, plans: readonly AgentPlan[]): Promise<number[]> {
  await stage.model.forget()
  const run = bare.run(plans, plans.length)
  await untilAllStream(stage, plans)
  const askedAt = new Map<string, number>()
  for (const { name } of plans) {
    askedAt.set(name, sharedNow())
    bare.abort(name)
    await waitUntil(async () => (await stage.model.journal()).some((call) => call.name === name && call.cutAt))
  }
  await run
  return cutDelays(stage, askedAt)
}

async function untilAllStream({ model }: BenchStage, plans: readonly AgentPlan[]): Promise<void> {
  const all = async () => (await model.journal()).filter(({ firstTokenAt }) => firstTokenAt).length === plans.length
  await waitUntil(all, { within: START_WITHIN_MS, what: 'the first token of all agents' })
}

async function untilAllCut({ model }: BenchStage, plans: readonly AgentPlan[]): Promise<void> {
  const all = async () => (await model.journal()).filter(({ cutAt }) => cutAt).length === plans.length
  await waitUntil(all, { within: START_WITHIN_MS, what: 'the cut of all agents' })
}

async function cutDelays({ model }: BenchStage, askedAt: ReadonlyMap<string, number>): Promise<number[]> {
  return (await model.journal()).map(({ name, cutAt = NaN }) => cutAt - (askedAt.get(name) ?? NaN))
}

async function whilePubSubIsRefused(stage: BenchStage, redisUrl: string, work: () => Promise<void>): Promise<void> {
  // What every worker listens to, to hear of aborts.
  const channel = `${stage.config.QUEUE_PREFIX}:signal:workers`
  const listeners = async () => {
    const answer = await redisCommand(redisUrl, 'PUBSUB', 'NUMSUB', channel)
    return Array.isArray(answer) ? Number(answer[1]) : NaN
  }
  await redisCommand(redisUrl, 'ACL', 'SETUSER', 'default', 'resetchannels')
  try {
    await waitUntil(async () => (await listeners()) === 0, { what: 'the end of all subscriptions' })
    await work()
  } finally {
    await redisCommand(redisUrl, 'ACL', 'SETUSER', 'default', 'allchannels')
    await waitUntil(async () => (await listeners()) > 0, { what: 'a worker that listens again' })
  }
}
