// What BullMQ and Redis say when they refuse something, as it is read in one place.
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { redisCommand } from '@offshoot/testing/redis-command'
import { waitUntil } from '@offshoot/testing/wait-until'
import { Worker } from 'bullmq'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { queueName } from '../src/queue/delivery-queue.ts'
import { isHeldByWorker, isRefusal } from '../src/queue/queue-errors.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage()
})
afterAll(() => stage.close())

const errorOf = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => undefined,
    (error: unknown) => error,
  )

test('STATE-17: a delivery that a worker holds is not removed, and says so; another error says something else', async () => {
  const { config, runtime } = stage
  const queue = runtime.deliveries.lane('default')
  const job = await queue.add('held', {})
  const release = Promise.withResolvers<void>()
  const holder = new Worker(queueName('default'), () => release.promise, {
    connection: { url: config.REDIS_URL ?? '' },
    prefix: config.QUEUE_PREFIX,
  })
  await waitUntil(async () => (await job.getState()) === 'active')
  const error = await errorOf(job.remove())
  expect(isHeldByWorker(error)).toBe(true)
  expect(isRefusal(error)).toBe(false)
  release.resolve()
  await holder.close()
})

test('LOSS-15: what Redis answers with is a refusal; no answer is none', async () => {
  const refused = await errorOf(redisCommand(stage.config.REDIS_URL ?? '', 'set', 'a key without a value'))
  expect(isRefusal(refused)).toBe(true)
  expect(isHeldByWorker(refused)).toBe(false)
  expect(isRefusal(new Error('Connection is closed.'))).toBe(false)
})
