// STUCK-12 with a cap in the way: of more spawns than it allows exactly so many are made, and every call has one result.
import { childrenOf, runRoot, spawnOf } from '@offshoot/testing/agents'
import { type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const MAX_CHILDREN = 3
const CALLS = 8

let raw: RawModel
let stage: WorkerStage
beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { environment: { MAX_CHILDREN_PER_JOB: String(MAX_CHILDREN) } })
  await stage.putBot('bot')
  raw.answer('work', says('worked'))
})
afterAll(async () => {
  await stage.close()
  await raw.stop()
})

test.each(['sync', 'async'])('STUCK-12: of %s spawns beyond a cap each gets its own result', async (mode) => {
  const message = `spawn ${mode}`
  raw.answer(
    message,
    (reply) => {
      for (let at = 0; at < CALLS; at += 1) reply.call('spawnAgent', spawnOf('bot', 'work', { mode }), `call_${at}`)
      reply.finish()
    },
    says('all answered'),
  )
  const before = raw.requests('work').length
  const parent = await runRoot(stage, 'bot', message)
  expect(parent).toMatchObject({
    state: 'completed',
    result: 'all answered',
    steps: 2,
    // One wait for all of them, one wake.
    attempt: mode === 'sync' ? 2 : 1,
    deliverySeq: mode === 'sync' ? 2 : 1,
  })
  expect(raw.requests(message)).toHaveLength(2)
  const children = await childrenOf(stage, parent.id)
  expect(children.map(({ parentToolCallId }) => parentToolCallId)).toEqual(['call_0', 'call_1', 'call_2'])
  const { database } = stage.runtime
  expect(await database.agentTree.findUniqueOrThrow({ where: { rootJobId: parent.id } })).toMatchObject({
    jobs: 1 + MAX_CHILDREN,
  })
  expect(await database.agentEvent.count({ where: { jobId: parent.id, kind: 'woken' } })).toBe(mode === 'sync' ? 1 : 0)

  const input = raw.requests(message)[1]?.body['input']
  const items = (Array.isArray(input) ? input : []) as { type?: string; call_id?: string; output?: unknown }[]
  const results = items.filter(({ type }) => type === 'function_call_output')
  expect(results.map(({ call_id: id }) => id)).toEqual(Array.from({ length: CALLS }, (_, at) => `call_${at}`))
  const texts = results.map(({ output }) => JSON.stringify(output))
  expect(children.map(({ id }) => texts.findIndex((text) => text.includes(id)))).toEqual([0, 1, 2])
  expect(texts.filter((text) => text.includes('\\"reason\\":\\"cap\\"'))).toEqual(texts.slice(MAX_CHILDREN))
  const calls = await database.agentToolCall.findMany({ where: { jobId: parent.id } })
  expect(calls.filter(({ finishedAt }) => finishedAt !== null)).toHaveLength(CALLS)
  expect(raw.requests('work').length - before).toBeLessThanOrEqual(MAX_CHILDREN)
})
