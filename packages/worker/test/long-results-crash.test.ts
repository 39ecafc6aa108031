// A result that is too long, and a worker that is killed right after it.
import { decodeStored } from '@offshoot/shared/db/stored-value'
import { endOf, spawnRoot } from '@offshoot/testing/agents'
import { says } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openSystemStage, type SystemStage } from './system-stage.ts'

let stage: SystemStage
beforeAll(async () => {
  stage = await openSystemStage()
})
afterAll(() => stage.close())

test('COST-3 COST-11: what was truncated before a crash is the same after it, and is offered to be read on', async () => {
  const { raw } = stage
  const long = 'x'.repeat(60_000)
  raw.answer(
    'long and slow',
    (reply) => {
      reply.call('note', { text: long }, 'call_0')
      reply.call('slow', { text: 'long' }, 'call_1')
      reply.finish()
    },
    says('done'),
  )
  const { id } = await spawnRoot(stage, 'bot', 'long and slow')
  await stage.untilNote('slow begins long')
  const call = await waitUntil(() =>
    stage.runtime.database.agentToolCall.findFirst({ where: { jobId: id, finishedAt: { not: null } } }),
  )
  const worker = await stage.fleet.workerOf(id)
  worker.kill('SIGKILL')
  await worker.exited
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'done', attempt: 2 })
  expect(await stage.notesOf(long)).toHaveLength(1)
  const ref = String(Object(decodeStored(call.output)).ref)
  const body = JSON.stringify(raw.requests('long and slow').at(-1)?.body)
  expect(body).toContain(`of 60006 characters are left out here. Read on with readResult({ \\"ref\\": \\"${ref}\\"`)
  expect(body).toContain('"name":"readResult"')
  expect(await stage.runtime.database.blob.findMany({ where: { jobId: id }, select: { id: true } })).toEqual([
    { id: ref },
  ])
})
