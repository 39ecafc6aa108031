// An outbox entry that was given up can be sent again; any other one cannot.
import { eventsOf } from '@offshoot/testing/agents'
import { spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { markOutboxFailed } from '../src/db/outbox.ts'
import { removeOldTrees } from '../src/operations/remove-old.ts'
import { resendDeadLetter } from '../src/operations/resend-dead-letter.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ environment: { LOG_LEVEL: 'silent' } })
  await stage.putBot('writer')
})
afterAll(() => stage.close())

/** The delivery of a new job, which is not in the queue and was given up. */
async function deadDelivery(): Promise<{ id: bigint; jobId: string }> {
  const { database, deliveries } = stage.runtime
  const { id: jobId } = await spawnJob(stage.runtime, 'alice')
  const { id } = await waitUntil(() => database.outbox.findFirst({ where: { jobId, doneAt: { not: null } } }))
  await deliveries.remove('default', jobId, 1)
  await database.outbox.update({ where: { id }, data: { doneAt: null, attempts: 149 } })
  expect(await markOutboxFailed(database, id, 'no', null)).toEqual([{ jobId, kind: 'dead-letter' }])
  return { id, jobId }
}

const entry = (id: bigint) => stage.runtime.database.outbox.findUnique({ where: { id } })
const delivery = (jobId: string) => stage.runtime.deliveries.lane('default').getJob(`${jobId}-1`)

test('a dead letter goes out at once, and the history says who sent it again', async () => {
  const { id, jobId } = await deadDelivery()
  expect(await resendDeadLetter(stage.runtime, id, 'ops')).toMatchObject({
    kind: 'resent',
    entry: { id, jobId, kind: 'delivery', key: `delivery:${jobId}-1` },
  })
  await waitUntil(() => delivery(jobId), { within: 1_500 })
  await waitUntil(async () => (await entry(id))?.doneAt)
  expect(await entry(id)).toMatchObject({ deadAt: null, attempts: 0 })
  expect(await eventsOf(stage, jobId)).toEqual(['spawned', 'dead-letter', 'resent'])
  const line = await stage.runtime.database.agentEvent.findFirst({ where: { jobId, kind: 'resent' } })
  expect(line).toMatchObject({ actorId: 'ops', data: { kind: 'delivery', triesBefore: 150 } })
})

test('an entry that was told is refused, and so is one that is still tried; both stay as they are', async () => {
  const { id, jobId } = await deadDelivery()
  const { database } = stage.runtime
  await database.outbox.update({ where: { id }, data: { doneAt: new Date('2026-01-02T03:04:05Z') } })
  const told = await entry(id)
  expect(await resendDeadLetter(stage.runtime, id, 'ops')).toMatchObject({
    kind: 'refused',
    refusal: { error: 'The entry was told at 2026-01-02T03:04:05.000Z. There is nothing to send again.' },
  })
  expect(await entry(id)).toEqual(told)
  await database.outbox.update({ where: { id }, data: { doneAt: null, deadAt: null, attempts: 3 } })
  expect(await resendDeadLetter(stage.runtime, id, 'ops')).toMatchObject({
    kind: 'refused',
    refusal: {
      error:
        'The entry was not given up: it is being sent, after 3 tries that failed. Only a dead letter can be sent again.',
    },
  })
  expect(await eventsOf(stage, jobId)).toEqual(['spawned', 'dead-letter'])
  expect(await delivery(jobId)).toBeUndefined()
})

test('of ten who send it again at once one does', async () => {
  const { id, jobId } = await deadDelivery()
  const answers = await Promise.all(
    Array.from({ length: 10 }, (_, at) => resendDeadLetter(stage.runtime, id, `ops-${at}`)),
  )
  expect(answers.filter(({ kind }) => kind === 'resent')).toHaveLength(1)
  expect(answers.filter(({ kind }) => kind === 'refused')).toHaveLength(9)
  expect((await eventsOf(stage, jobId)).filter((kind) => kind === 'resent')).toHaveLength(1)
})

test('an entry that is not there, or whose job retention has removed, is not found', async () => {
  expect(await resendDeadLetter(stage.runtime, 999_999n, 'ops')).toEqual({ kind: 'not_found' })
  const { id, jobId } = await deadDelivery()
  const { database } = stage.runtime
  const ended = { state: 'failed' as const, finishedAt: new Date(0) }
  await database.agentJob.update({ where: { id: jobId }, data: ended })
  const [answer] = await Promise.all([resendDeadLetter(stage.runtime, id, 'ops'), removeOldTrees(stage.runtime, 1)])
  expect(['resent', 'not_found']).toContain(answer.kind)
  // A tree that somebody held is left to the next round.
  await removeOldTrees(stage.runtime, 1)
  await waitUntil(async () => (await database.agentJob.count({ where: { id: jobId } })) === 0)
  expect(await eventsOf(stage, jobId)).toEqual([])
  expect(await resendDeadLetter(stage.runtime, id, 'ops')).toEqual({ kind: 'not_found' })
})

test('a failure that is noted late makes a dead letter no ordinary entry again', async () => {
  const { id } = await deadDelivery()
  expect(await markOutboxFailed(stage.runtime.database, id, 'later', 1_000)).toEqual([])
  expect(await entry(id)).toMatchObject({ lastError: 'no', attempts: 150, deadAt: expect.any(Date) })
})
