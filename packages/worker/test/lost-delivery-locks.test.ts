// COST-4: BullMQ's lock of a delivery is gone. That says nothing of the claim: it makes the worker ask Postgres, long before
// its next heartbeat here.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { deliveryId } from '@offshoot/shared/contracts/delivery'
import { handBack } from '@offshoot/shared/operations/hand-back'
import { endOf, readJob, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { type RawModel, startRawModel } from '@offshoot/testing/raw-model'
import { redisCommand } from '@offshoot/testing/redis-command'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

/** BullMQ renews a lock when half of its 30 s are over; it looks every 7.5 s. */
const RENEWED_WITHIN_MS = 25_000

let raw: RawModel
let stage: WorkerStage
beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    environment: { WORKER_HEARTBEAT_MS: '120000', WORKER_LOCK_MS: '400000' },
  })
  await stage.putBot('bot')
})
afterAll(async () => {
  await stage.close()
  await raw.stop()
})

async function removeLock(jobId: string): Promise<void> {
  const key = stage.runtime.deliveries.lane('default').toKey(`${deliveryId(jobId, 1)}:lock`)
  expect(await redisCommand(stage.config.REDIS_URL ?? '', 'DEL', key)).toBe(1)
}

test('COST-4: of two runs whose delivery’s lock is lost, the one whose claim is gone stops, and the other goes on', async () => {
  const finish = Promise.withResolvers<void>()
  for (const message of ['claim gone', 'claim intact'])
    raw.answer(message, async (reply) => {
      reply.text('I speak')
      await Promise.race([finish.promise, reply.closed])
      reply.text(' to the end.')
      reply.finish()
    })
  const gone = await spawnRoot(stage, 'bot', 'claim gone')
  const intact = await spawnRoot(stage, 'bot', 'claim intact')
  for (const { id } of [gone, intact]) await untilLiveText(stage, id, 'I speak')
  const queue = stage.runtime.deliveries.lane('default')
  await queue.pause()
  const { workerId } = await readJob(stage, gone.id)
  expect(await handBack(stage.runtime, gone, { lostWorkerId: workerId ?? '' }, 'worker-lost')).toBe(true)

  for (const { id } of [gone, intact]) await removeLock(id)
  await waitUntil(() => raw.requests('claim gone')[0]?.closedByPeerAt, {
    within: RENEWED_WITHIN_MS,
    what: 'the end of the run that has lost its claim',
  })
  // The look that found it has found the other claim as it was.
  finish.resolve()
  expect(await endOf(stage, intact.id)).toMatchObject({
    state: 'completed',
    result: 'I speak to the end.',
    attempt: 1,
    deliverySeq: 1,
  })
  expect(raw.requests('claim intact')).toHaveLength(1)
  await queue.resume()
  expect(await endOf(stage, gone.id)).toMatchObject({ state: 'completed', attempt: 2 })
})
