// What it costs one caller who waits: sync spawns one after the other, of a 1-step agent that says 20 tokens at once. All
// three run in turn, some at a time, so that a slow moment of the machine is nobody's alone.
import { QueueEvents } from 'bullmq'
import { type BareRunner, type BenchStage, type BullmqRunner, callerOf, openBenchStage, PLAIN } from '../bench-stage.ts'
import type { Chart } from '../chart.ts'
import { costOf } from '../meters.ts'
import { type AgentPlan, planOf } from '../plan.ts'
import { percentile, type Workload } from '../workload.ts'

const SPAWNS = 500
const AT_A_TIME = 50

export const overhead: Workload = {
  name: 'overhead',
  about: `${SPAWNS} sync spawns of a 1-step agent, one after the other`,
  warmUps: 1,
  async open({ quick }) {
    const stage = await openBenchStage()
    await stage.startWorker()
    const bare = await stage.startBareRunner()
    const bullmq = await stage.startBullmq(100)
    const events = new QueueEvents(bullmq.queue.name, bullmq.queue.opts)
    await events.waitUntilReady()
    const plans = Array.from({ length: AT_A_TIME }, (_, at) => planOf(`job ${at}`))
    return {
      async round() {
        const tookMs = { offshoot: [] as number[], bare: [] as number[], bullmq: [] as number[] }
        const { wallMs, cpuMs } = await costOf({ model: stage.model.pid }, async () => {
          await stage.model.forget()
          for (let done = 0; done < (quick ? AT_A_TIME : SPAWNS); done += AT_A_TIME) {
            tookMs.offshoot.push(...(await runOffshoot(stage, plans)))
            tookMs.bare.push(...(await runBare(bare, plans)))
            tookMs.bullmq.push(...(await runBullmq(bullmq, events, plans)))
          }
        })
        const p50 = (who: keyof typeof tookMs) => percentile(tookMs[who], 0.5)
        const p99 = (who: keyof typeof tookMs) => percentile(tookMs[who], 0.99)
        const above = { offshoot: p50('offshoot') - p50('bare'), bullmq: p50('bullmq') - p50('bare') }
        return {
          offshootP50Ms: p50('offshoot'),
          offshootP99Ms: p99('offshoot'),
          bullmqP50Ms: p50('bullmq'),
          bullmqP99Ms: p99('bullmq'),
          bareP50Ms: p50('bare'),
          bareP99Ms: p99('bare'),
          overheadP50Ms: above.offshoot,
          overheadP99Ms: p99('offshoot') - p99('bare'),
          bullmqOverheadP50Ms: above.bullmq,
          overheadRatioToBullmq: above.offshoot / above.bullmq,
          modelCpuShare: cpuMs.model / wallMs,
        }
      },
      charts: CHARTS,
      async close() {
        await events.close()
        await stage.close()
      },
    }
  },
}

const CHARTS: readonly Chart[] = [
  {
    kind: 'bars',
    title: 'From the call to its result',
    unit: 'ms',
    bars: [
      { label: 'Offshoot, p50', figure: 'offshootP50Ms' },
      { label: 'Offshoot, p99', figure: 'offshootP99Ms' },
      { label: 'raw BullMQ, p50', figure: 'bullmqP50Ms' },
      { label: 'raw BullMQ, p99', figure: 'bullmqP99Ms' },
      { label: 'bare streamText, p50', figure: 'bareP50Ms' },
      { label: 'bare streamText, p99', figure: 'bareP99Ms' },
    ],
  },
]

async function runOffshoot({ offshoot }: BenchStage, plans: readonly AgentPlan[]): Promise<number[]> {
  return timed(plans, async (message, at) => {
    const { state } = await offshoot.run(callerOf(at), { bot: PLAIN, message })
    if (state !== 'completed') throw new Error(`a sync spawn ended as ${state}`)
  })
}

async function runBare(bare: BareRunner, plans: readonly AgentPlan[]): Promise<number[]> {
  return (await bare.run(plans, 1)).tookMs
}

async function runBullmq({ queue }: BullmqRunner, events: QueueEvents, plans: readonly AgentPlan[]): Promise<number[]> {
  return timed(plans, async (message) => {
    const job = await queue.add('agent', { message }, { attempts: 1 })
    await job.waitUntilFinished(events)
  })
}

async function timed(
  plans: readonly AgentPlan[],
  call: (message: string, at: number) => Promise<void>,
): Promise<number[]> {
  const tookMs: number[] = []
  for (const [at, plan] of plans.entries()) {
    const message = JSON.stringify(plan)
    const before = performance.now()
    await call(message, at)
    tookMs.push(performance.now() - before)
  }
  return tookMs
}
