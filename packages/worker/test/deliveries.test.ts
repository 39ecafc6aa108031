// A delivery only brings a job to a worker: whether it counts is decided by the claim.
import type { Job } from 'bullmq'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { deliveryId } from '@offshoot/shared/contracts/delivery'
import { newId } from '@offshoot/shared/ids'
import { abort, endOf, readJob, runRoot, spawnOf, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { callsTool, type RawModel, says, startRawModel, ticking } from '@offshoot/testing/raw-model'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { startWorker } from '../src/worker.ts'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl)
  await stage.putBot('bot')
  raw.answer('hello', says('hi'))
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const queue = () => stage.runtime.deliveries.lane('default')

/** The BullMQ job of a delivery once it is over. */
async function overDelivery(id: string): Promise<Job> {
  return waitUntil(
    async () => {
      const job: Job | undefined = await queue().getJob(id)
      return job?.finishedOn !== undefined && job
    },
    { what: `the end of delivery ${id}` },
  )
}

async function deliver(agentJobId: string, deliverySeq: number): Promise<Job> {
  const id = `again-${newId()}`
  await queue().add(
    'again',
    { agentJobId, deliverySeq, owner: 'alice', parent: null, depth: 1 },
    { jobId: id, priority: 1 },
  )
  return overDelivery(id)
}

test('LOSS-17: a delivery with an old number is acknowledged without a model call', async () => {
  raw.answer('wait for it', callsTool('spawnAgent', spawnOf('bot', 'hello')), says('over'))
  const job = await runRoot(stage, 'bot', 'wait for it')
  expect(job).toMatchObject({ state: 'completed', deliverySeq: 2, attempt: 2 })
  for (const seq of [1, 2, 3]) expect((await deliver(job.id, seq)).returnvalue).toBe('not due any more')
  expect(raw.requests('wait for it')).toHaveLength(2)
  expect(await readJob(stage, job.id)).toEqual(job)
})

test('LOSS-17: of two deliveries of a waiting job only the one with its number counts', async () => {
  raw.answer('twice in line', says('once'))
  await queue().pause()
  const { id } = await spawnRoot(stage, 'bot', 'twice in line')
  await waitUntil(() => stage.runtime.deliveries.isUnderway('default', id, 1))
  // As the reconciler does with a delivery that it takes for lost.
  await stage.runtime.database.agentJob.update({ where: { id }, data: { deliverySeq: 2 } })
  await queue().resume()
  expect((await overDelivery(deliveryId(id, 1))).returnvalue).toBe('not due any more')
  expect(await readJob(stage, id)).toMatchObject({ state: 'pending', attempt: 0 })
  expect((await deliver(id, 2)).returnvalue).toBe('completed, 1 steps')
  expect(raw.requests('twice in line')).toHaveLength(1)
})

test('LOSS-17: a second delivery of a job that runs changes nothing', async () => {
  raw.answer('run on', ticking)
  const { id } = await spawnRoot(stage, 'bot', 'run on')
  await untilLiveText(stage, id, 'tick')
  expect((await deliver(id, 1)).returnvalue).toBe('not due any more')
  expect(await readJob(stage, id)).toMatchObject({ state: 'running', attempt: 1 })
  expect(raw.requests('run on')).toHaveLength(1)
  await abort(stage, id)
})

test('LOSS-9: a delivery without a row is acknowledged without a model call', async () => {
  expect((await deliver(newId(), 1)).returnvalue).toBe('not due any more')
})

test('a delivery whose data are no delivery fails by itself, in words of ours', async () => {
  const added = await queue().add('odd', { something: 'else' }, { priority: 1 })
  const over = await overDelivery(added.id ?? '')
  expect(over.failedReason).toBe('unexpected error, see the log of the worker')
})

describe('Bull Board', () => {
  test('SEC-7: a delivery is named by the bot and holds ids and labels only', async () => {
    const { id } = await runRoot(stage, 'bot', 'hello')
    const delivery = await overDelivery(deliveryId(id, 1))
    expect(delivery.name).toBe('forge/bot')
    expect(delivery.data).toEqual({ agentJobId: id, deliverySeq: 1, owner: 'alice', parent: null, depth: 1 })
    expect(delivery.returnvalue).toBe('completed, 1 steps')
  })

  test('a wait is over in a few words, and a wake comes before what is new', async () => {
    raw.answer('wait again', callsTool('spawnAgent', spawnOf('bot', 'hello')), says('over'))
    const { id } = await runRoot(stage, 'bot', 'wait again')
    expect((await overDelivery(deliveryId(id, 1))).returnvalue).toBe('waiting on 1 child')
    const wake = await overDelivery(deliveryId(id, 2))
    expect(wake.returnvalue).toBe('completed, 2 steps')
    expect(wake.opts.priority).toBe(1)
  })

  test('only a job that failed has a failed delivery', async () => {
    raw.answer('no key', (reply) => reply.status(401, { message: 'no' }))
    const { id } = await runRoot(stage, 'bot', 'no key')
    const delivery = await overDelivery(deliveryId(id, 1))
    expect(delivery.failedReason).toBe('failed: model_auth')
    expect(await delivery.getState()).toBe('failed')
  })

  test('an abort is over in a few words, too', async () => {
    raw.answer('stop me', ticking)
    const { id } = await spawnRoot(stage, 'bot', 'stop me')
    await untilLiveText(stage, id, 'tick')
    await abort(stage, id)
    const delivery = await overDelivery(deliveryId(id, 1))
    expect(delivery.returnvalue).toBe('aborted by alice')
    expect(await delivery.getState()).toBe('completed')
  })
})

/** Spawns as bob with no worker there, changes something, and lets a worker come. */
async function runAsBob(
  before: (quiet: TestStage) => Promise<unknown>,
  between: (quiet: TestStage) => Promise<unknown>,
) {
  const quiet = await openTestStage({ environment: { OPENAI_BASE_URL: raw.baseUrl } })
  await quiet.putBot('bot')
  await before(quiet)
  const { id } = await spawnRoot(quiet, 'bot', 'hello', { runAsUserId: 'bob' })
  await between(quiet)
  const worker = await startWorker(quiet.runtime)
  const job = await endOf(quiet, id)
  await worker.drain()
  await quiet.close()
  return job
}

describe('rights that were taken back before the job ran', () => {
  const delegate = { userId: 'alice', delegateUserId: 'bob' }

  test('a delegation that was withdrawn fails the job as not_authorized, without a model call', async () => {
    const calls = raw.requests('hello').length
    const job = await runAsBob(
      ({ runtime }) => runtime.database.userDelegate.create({ data: delegate }),
      ({ runtime }) => runtime.database.userDelegate.deleteMany({}),
    )
    expect(job).toMatchObject({ state: 'failed', reason: 'not_authorized', ownerId: 'bob', grant: 'delegate' })
    expect(job.error).toMatch(/^Not authorized to spawn sub-agent as user bob\./)
    expect(raw.requests('hello')).toHaveLength(calls)
  })

  test('a delegation that stands lets it run', async () => {
    const job = await runAsBob(
      ({ runtime }) => runtime.database.userDelegate.create({ data: delegate }),
      async () => undefined,
    )
    expect(job).toMatchObject({ state: 'completed', ownerId: 'bob', triggeredById: 'alice' })
  })

  test('an admin who is none any more fails the job, too', async () => {
    const job = await runAsBob(
      ({ runtime }) => runtime.database.user.create({ data: { id: 'alice', admin: true } }),
      ({ runtime }) => runtime.database.user.update({ where: { id: 'alice' }, data: { admin: false } }),
    )
    expect(job).toMatchObject({ state: 'failed', reason: 'not_authorized', grant: 'admin' })
  })
})
