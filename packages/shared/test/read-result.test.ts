// Texts that are kept whole and shown in part: written with the claim, read by those whose they are.
import { claimNext, claimOf, COMPLETED, spawnChild, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { readResultInputSchema } from '../src/contracts/read-result.ts'
import type { Claim, ClaimedJob } from '../src/db/agent-jobs.ts'
import { loadToolCalls, storeToolEnd } from '../src/db/journal.ts'
import { newId } from '../src/ids.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import type { JobReader } from '../src/operations/readable-jobs.ts'
import { readResult } from '../src/operations/read-result.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage()
  await stage.putBot('writer')
  await stage.runtime.database.user.createMany({ data: [{ id: 'admin', admin: true }] })
})
afterAll(() => stage.close())

const read = (reader: JobReader, ref: string, page: object = {}) =>
  readResult(stage.runtime, reader, readResultInputSchema.parse({ ref, ...page }))

/** Stores the end of a tool call whose whole text is kept; answers whether the claim held. */
async function keep(claim: Claim, text: string, ref = newId()): Promise<{ ref: string; held: boolean }> {
  const call = { stepIndex: 0, toolCallId: newId(), toolName: 'lines' }
  const { held } = await storeToolEnd(stage.runtime.database, claim, {
    ...call,
    outcome: { output: 'in part' },
    whole: { ref, text },
  })
  return { ref, held }
}

const running = async (userId = 'alice') => claimNext(stage.runtime, (await spawnJob(stage.runtime, userId)).id)
const as = (job: ClaimedJob): JobReader => ({ runningJobId: job.id })

test('a text is kept with its call, once, and pages of it are read by character', async () => {
  const job = await running()
  const text = 'a😀'.repeat(10)
  const { ref, held } = await keep(claimOf(job), text)
  expect(held).toBe(true)
  expect(await loadToolCalls(stage.runtime.database, job.id)).toMatchObject([{ outcome: { output: 'in part' } }])
  await keep(claimOf(job), 'another', ref)
  expect(await read(as(job), ref, { length: 3 })).toEqual({
    ref,
    characters: 20,
    offset: 0,
    text: 'a😀a',
    nextOffset: 3,
  })
  expect(await read(as(job), ref, { offset: 17 })).toEqual({ ref, characters: 20, offset: 17, text: '😀a😀' })
  expect(await read(as(job), ref, { offset: 20 })).toEqual({ ref, characters: 20, offset: 20, text: '' })
  expect(await read(as(job), ref, { offset: 1_000_000_000 })).toMatchObject({ text: '' })
})

test('STATE-7: without the claim neither the call nor its text is written', async () => {
  const job = await running()
  const { ref, held } = await keep({ jobId: job.id, token: 'another' }, 'late')
  expect(held).toBe(false)
  expect(await stage.runtime.database.blob.count({ where: { id: ref } })).toBe(0)
  expect(await loadToolCalls(stage.runtime.database, job.id)).toEqual([])
})

test('LOSS-7: U+0000 and half an emoji in a text are kept legibly', async () => {
  const job = await running()
  const { ref } = await keep(claimOf(job), 'a\u0000b\ud83d')
  expect(await read(as(job), ref)).toMatchObject({ text: 'a␀b\ufffd' })
  expect(await read(as(job), 'no\u0000thing\ud83d')).toBeNull()
})

test('SEC-1: a running job reads its own and its subtree’s; of all others it learns nothing', async () => {
  const parent = await running()
  const child = await claimNext(stage.runtime, (await spawnChild(stage.runtime, parent, {})).id)
  const stranger = await running()
  const ofParent = await keep(claimOf(parent), 'of the parent')
  const ofChild = await keep(claimOf(child), 'of the child')
  await finishAgent(stage.runtime, child, { guard: claimOf(child), ending: { ...COMPLETED, result: 'child’s result' } })
  expect(await read(as(parent), ofParent.ref)).toMatchObject({ text: 'of the parent' })
  expect(await read(as(parent), ofChild.ref)).toMatchObject({ text: 'of the child' })
  expect(await read(as(parent), child.id)).toMatchObject({ text: 'child’s result' })
  for (const ref of [ofParent.ref, ofChild.ref, child.id, parent.id, newId()])
    expect(await read(as(stranger), ref)).toBeNull()
  // Upwards nothing is readable either, and a job has no result of its own yet.
  for (const ref of [ofParent.ref, parent.id]) expect(await read(as(child), ref)).toBeNull()
  expect(await read(as(parent), parent.id)).toBeNull()
  expect(await read({ runningJobId: newId() }, ofParent.ref)).toBeNull()
})

test('SEC-1: users read what their jobs kept, admins what anybody’s did', async () => {
  const job = await running()
  const { ref } = await keep(claimOf(job), 'kept')
  expect(await read({ userId: 'alice', admin: false }, ref)).toMatchObject({ text: 'kept' })
  expect(await read({ userId: 'admin', admin: true }, ref)).toMatchObject({ text: 'kept' })
  expect(await read({ userId: 'bob', admin: false }, ref)).toBeNull()
})
