// Baseline: BullMQ and `streamText`, and nothing else. The result is the job's return value. BULLMQ_LOCK_MS replaces
// BullMQ's limits of 30 s after which a lost worker's jobs go to others.
import { type Job, Worker } from 'bullmq'
import { createBareAgent } from './bare-agent.ts'

const runBareAgent = createBareAgent(process.env['BENCH_MODEL_URL'] ?? '')
const lockMs = Number(process.env['BULLMQ_LOCK_MS'] ?? 30_000)
const worker = new Worker('bench', (job: Job<{ message: string }>) => runBareAgent(job.data.message), {
  connection: { url: process.env['REDIS_URL'] ?? '', maxRetriesPerRequest: null },
  // Stands in each job that it takes.
  name: String(process.pid),
  prefix: process.env['QUEUE_PREFIX'] ?? '',
  concurrency: Number(process.env['WORKER_CONCURRENCY'] ?? 100),
  lockDuration: lockMs,
  stalledInterval: lockMs,
  removeOnComplete: { count: 1_000 },
})
await worker.waitUntilReady()
process.on('SIGTERM', () => {
  void worker.close().then(() => process.exit(0))
})
process.send?.({ ready: true })
