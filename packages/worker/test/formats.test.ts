// A rolling deploy: jobs whose journal is in a format that this worker does not read yet.
import type { Job } from 'bullmq'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { READABLE_FORMAT } from '@offshoot/shared/db/stored-value'
import { deliveryId } from '@offshoot/shared/contracts/delivery'
import { handBack } from '@offshoot/shared/operations/hand-back'
import { endOf, readJob, spawnRoot } from '@offshoot/testing/agents'
import { claimNext, claimOf } from '@offshoot/testing/jobs-without-worker'
import { type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { environment: { LOG_LEVEL: 'silent' } })
  await stage.putBot('bot')
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const queue = () => stage.runtime.deliveries.lane('default')
const setFormat = (id: string, journalFormat: number) =>
  stage.runtime.database.agentJob.update({ where: { id }, data: { journalFormat } })

/** A delivery once it was brought to a worker so many times. */
const broughtTimes = (id: string, times: number) =>
  waitUntil(async () => {
    const job: Job | undefined = await queue().getJob(id)
    return job !== undefined && job.attemptsStarted >= times && job
  })

test('a job in a newer format stays pending, its delivery goes back and comes again, and no worker spins on it', async () => {
  raw.answer('from tomorrow', says('read'))
  await queue().pause()
  const { id } = await spawnRoot(stage, 'bot', 'from tomorrow')
  await setFormat(id, READABLE_FORMAT + 1)
  await queue().resume()
  await broughtTimes(deliveryId(id, 1), 1)
  const before = performance.now()
  await broughtTimes(deliveryId(id, 1), 2)
  expect(performance.now() - before).toBeGreaterThan(1_500)
  expect(await readJob(stage, id)).toMatchObject({ state: 'pending', attempt: 0, claimToken: null, deliverySeq: 1 })
  expect(raw.requests('from tomorrow')).toEqual([])

  // As a newer worker would see it.
  await setFormat(id, READABLE_FORMAT)
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'read', deliverySeq: 1, attempt: 1 })
  await waitUntil(async () => (await queue().getJobState(deliveryId(id, 1))) === 'completed')
})

test('a job that a newer worker has handed back is left to newer ones, and ends at its deadline all the same', async () => {
  await queue().pause()
  const { id } = await spawnRoot(stage, 'bot', 'begun tomorrow', { timeoutSeconds: 60 })
  const job = await claimNext(stage.runtime, id)
  await setFormat(id, READABLE_FORMAT + 1)
  await handBack(stage.runtime, job, claimOf(job), 'handed-back')
  await queue().resume()
  await waitUntil(async () => (await queue().getJobState(deliveryId(id, 2))) === 'delayed')
  expect(await readJob(stage, id)).toMatchObject({ state: 'pending', attempt: 1 })
  await stage.runtime.database.agentJob.update({ where: { id }, data: { deadlineAt: new Date(0) } })
  expect(await endOf(stage, id)).toMatchObject({ state: 'failed', reason: 'timeout_total', attempt: 1 })
  expect(raw.requests('begun tomorrow')).toEqual([])
})
