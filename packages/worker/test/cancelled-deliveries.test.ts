// BullMQ's own cancel signal: one more reason to look, never an abort by itself.
import { Worker } from 'bullmq'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { deliveryId } from '@offshoot/shared/contracts/delivery'
import { openDatabase } from '@offshoot/shared/db/database'
import { storeAbortWish } from '@offshoot/shared/db/agent-jobs'
import { insertWorker } from '@offshoot/shared/db/workers'
import { newId } from '@offshoot/shared/ids'
import { queueName } from '@offshoot/shared/queue/delivery-queue'
import { endOf, readJob, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { type RawModel, startRawModel, ticking } from '@offshoot/testing/raw-model'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { createLiveWriters } from '../src/live-writer.ts'
import { createSuspects } from '../src/suspects.ts'
import { createProcessor, type Processor } from '../src/processor.ts'
import { type RunningJobs, watchRunningJobs } from '../src/running-jobs.ts'

let raw: RawModel
let stage: TestStage
let processor: Processor
let bullWorker: Worker
let runningJobs: RunningJobs
let heartbeatDatabase: ReturnType<typeof openDatabase>
const looks: number[] = []

beforeAll(async () => {
  raw = await startRawModel()
  // Nothing but BullMQ's signal makes the worker look within the time of these tests.
  const environment = { OPENAI_BASE_URL: raw.baseUrl, WORKER_HEARTBEAT_MS: '60000', WORKER_LOCK_MS: '200000' }
  stage = await openTestStage({ environment })
  await stage.putBot('bot')
  const { runtime, config } = stage
  heartbeatDatabase = openDatabase({ databaseUrl: config.DATABASE_URL, poolSize: 1, applicationName: 'heartbeat' })
  const { id } = await insertWorker(runtime.database, { id: newId(), host: 'h', pid: 1, lanes: ['default'] })
  const watched = await watchRunningJobs({
    runtime,
    heartbeatDatabase,
    workerId: () => id,
    onDeclaredLost: async () => undefined,
    onHeartbeat: async () => undefined,
  })
  runningJobs = {
    ...watched,
    lookSoon() {
      looks.push(performance.now())
      watched.lookSoon()
    },
  }
  processor = createProcessor({
    runtime,
    workerId: () => id,
    runningJobs,
    suspects: createSuspects(),
    layerWatch: { add: () => () => undefined, close: async () => undefined },
    liveWriters: createLiveWriters(runtime),
    isDraining: () => false,
    shutdown: new AbortController().signal,
  })
  bullWorker = new Worker(queueName('default'), processor, {
    connection: { url: config.REDIS_URL ?? '' },
    prefix: config.QUEUE_PREFIX,
    concurrency: 5,
  })
  raw.answer('tick', ticking)
})

afterAll(async () => {
  await bullWorker.close()
  await runningJobs.close()
  await heartbeatDatabase.$disconnect()
  await stage.close()
  await raw.stop()
})

async function runningJob() {
  const { id } = await spawnRoot(stage, 'bot', 'tick')
  await untilLiveText(stage, id, 'tick')
  return id
}

test('STUCK-6: the processor declares three parameters, after all that is around it', () => {
  expect(processor).toHaveLength(3)
})

test('STUCK-6: a cancelled delivery makes the worker ask Postgres at once, and a wish that stands there ends the run', async () => {
  const id = await runningJob()
  // Stored without a signal to anybody.
  await storeAbortWish(stage.runtime.database, [id], { by: 'alice', reason: 'aborted_by_user', text: null })
  expect(bullWorker.cancelJob(deliveryId(id, 1))).toBe(true)
  expect(await endOf(stage, id, 3_000)).toMatchObject({ state: 'aborted', abortRequestedBy: 'alice', partial: true })
})

test('STUCK-6: a cancelled delivery of a job that nobody wants to end changes nothing', async () => {
  const id = await runningJob()
  const before = looks.length
  expect(bullWorker.cancelJob(deliveryId(id, 1))).toBe(true)
  expect(looks).toHaveLength(before + 1)
  await runningJobs.close()
  await untilLiveText(stage, id, 'tick tick tick tick tick tick')
  expect(await readJob(stage, id)).toMatchObject({ state: 'running', attempt: 1, abortRequestedAt: null })
  runningJobs.stopAll({ kind: 'abort-wish' })
  expect(await endOf(stage, id, 3_000)).toMatchObject({ state: 'aborted', attempt: 1 })
})
