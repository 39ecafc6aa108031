// Baseline: bare in-process `streamText`. Told over IPC how many agents to run, and how many at a time.
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { createBareAgent } from './bare-agent.ts'

export interface BareOrder {
  messages: string[]
  concurrency: number
}

export interface BareReport {
  wallMs: number
  eventLoopDelayP99Ms: number
  /** Of each agent, in the order of the messages. */
  tookMs: number[]
}

const runBareAgent = createBareAgent(process.env['BENCH_MODEL_URL'] ?? '')

async function run({ messages, concurrency }: BareOrder): Promise<BareReport> {
  const delay = monitorEventLoopDelay({ resolution: 10 })
  delay.enable()
  const startedAt = performance.now()
  const tookMs: number[] = []
  let next = 0
  const lane = async () => {
    for (let at = next++; at < messages.length; at = next++) {
      const before = performance.now()
      await runBareAgent(messages[at] ?? '')
      tookMs[at] = performance.now() - before
    }
  }
  await Promise.all(Array.from({ length: concurrency }, lane))
  delay.disable()
  return { wallMs: performance.now() - startedAt, eventLoopDelayP99Ms: delay.percentile(99) / 1e6, tookMs }
}

process.on('message', (order: BareOrder) => {
  void run(order).then((report) => process.send?.({ report }))
})
process.send?.({ ready: true })
