// Baseline: BullMQ and `streamText`, and nothing else. The result is the job's return value.
import { type Job, Worker } from 'bullmq'
import { createBareAgent } from './bare-agent.ts'

const runBareAgent = createBareAgent(process.env['BENCH_MODEL_URL'] ?? '')
const worker = new Worker('bench', (job: Job<{ message: string }>) => runBareAgent(job.data.message), {
  connection: { url: process.env['REDIS_URL'] ?? '', maxRetriesPerRequest: null },
  prefix: process.env['QUEUE_PREFIX'] ?? '',
  concurrency: Number(process.env['WORKER_CONCURRENCY'] ?? 100),
  removeOnComplete: { count: 1_000 },
})
await worker.waitUntilReady()
process.on('SIGTERM', () => {
  void worker.close().then(() => process.exit(0))
})
process.send?.({ ready: true })
