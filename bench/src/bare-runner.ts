// Baseline: bare in-process `streamText`. Told over IPC how many agents to run and how many at a time, or which to abort.
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { createBareAgent } from './bare-agent.ts'
import { delaysOf, readPlan, sharedNow } from './plan.ts'

export type BareOrder = { run: { messages: string[]; concurrency: number } } | { abort: string }

export interface BareReport {
  wallMs: number
  eventLoopDelayP99Ms: number
  /** Of each agent, in the order of the messages. */
  tookMs: number[]
  /** How long the first token of each stamped agent was on its way. */
  firstTokenDelaysMs: number[]
}

const runBareAgent = createBareAgent(process.env['BENCH_MODEL_URL'] ?? '')
/** Of the agents that run, by the name of their plan. */
const running = new Map<string, AbortController>()

async function runAll(messages: readonly string[], concurrency: number): Promise<BareReport> {
  const delay = monitorEventLoopDelay({ resolution: 10 })
  delay.enable()
  const startedAt = performance.now()
  const tookMs: number[] = []
  const firstTokenDelaysMs: number[] = []
  let next = 0
  const lane = async () => {
    for (let at = next++; at < messages.length; at = next++) {
      const before = performance.now()
      firstTokenDelaysMs.push(...(await runOne(messages[at] ?? '')))
      tookMs[at] = performance.now() - before
    }
  }
  await Promise.all(Array.from({ length: concurrency }, lane))
  delay.disable()
  const wallMs = performance.now() - startedAt
  // A loop that has not turned twice gives no sample: it was late all the time.
  const eventLoopDelayP99Ms = delay.count === 0 ? wallMs : delay.percentile(99) / 1e6
  return { wallMs, eventLoopDelayP99Ms, tookMs, firstTokenDelaysMs }
}

/** Answers the delay of its first token, if it is stamped. */
async function runOne(message: string): Promise<number[]> {
  const { name, stamped } = readPlan(message)
  const controller = new AbortController()
  running.set(name, controller)
  let delays: number[] | undefined
  const onText = (delta: string) => (delays ??= stamped ? delaysOf(delta, sharedNow()).slice(0, 1) : [])
  try {
    await runBareAgent(message, { onText, signal: controller.signal })
  } catch (error) {
    if (!controller.signal.aborted) throw error
  } finally {
    running.delete(name)
  }
  return delays ?? []
}

process.on('message', (order: BareOrder) => {
  if ('abort' in order) return running.get(order.abort)?.abort()
  void runAll(order.run.messages, order.run.concurrency).then((report) => process.send?.({ report }))
})
process.send?.({ ready: true })
