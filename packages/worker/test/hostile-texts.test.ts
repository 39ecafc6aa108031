// Texts that Postgres would refuse, from a model and from tools, through a whole run.
import { jsonSchema, tool } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { decodeStored } from '@offshoot/shared/db/stored-value'
import type { AiTool } from '@offshoot/shared/tools/registry'
import { answerOf, childrenOf, runRoot, spawnOf } from '@offshoot/testing/agents'
import { type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const BAD = 'a\u0000b\ud83d'
const LEGIBLE = 'a␀b\ufffd'

const echo: AiTool = {
  id: 'echo',
  group: 'test',
  userSelect: true,
  tool: tool({
    inputSchema: jsonSchema<{ text?: string; fail?: boolean }>({ type: 'object' }),
    execute: ({ text, fail }) => {
      if (fail === true) throw new Error(`failed with ${text}`)
      return { [`key ${text}`]: text }
    },
  }),
}

let raw: RawModel
let stage: WorkerStage
beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { extensions: { tools: [echo] } })
  await stage.putBot('bot', { toolNames: ['spawnAgent', 'echo'] })
})
afterAll(async () => {
  await stage.close()
  await raw.stop()
})

test('LOSS-7 LOSS-8: in ids, names and inputs of calls, results, errors and answers they break nothing and are legible', async () => {
  raw.answer(
    'be hostile',
    (reply) => {
      reply.call('echo', { text: BAD }, `call-1-${BAD}`)
      reply.call('echo', { text: BAD, fail: true }, `call-2-${BAD}`)
      reply.call(`no-tool-${BAD}`, { text: BAD }, `call-3-${BAD}`)
      reply.call('spawnAgent', spawnOf('bot', `child ${BAD}`), `call-4-${BAD}`)
      reply.finish()
    },
    says(`done ${BAD}`),
  )
  raw.answer(`child ${LEGIBLE}`, says(`of the child ${BAD}`))
  const job = await runRoot(stage, 'bot', 'be hostile')
  expect(job).toMatchObject({ state: 'completed', result: `done ${LEGIBLE}` })
  const calls = await stage.runtime.database.agentToolCall.findMany({
    where: { jobId: job.id },
    orderBy: { toolCallId: 'asc' },
  })
  expect(calls.map(({ toolCallId }) => toolCallId)).toEqual([1, 2, 4].map((at) => `call-${at}-${LEGIBLE}`))
  expect(decodeStored(calls[0]?.output)).toEqual({ [`key ${LEGIBLE}`]: LEGIBLE })
  expect(decodeStored(calls[1]?.error)).toMatchObject({ message: `failed with ${LEGIBLE}` })
  expect(await childrenOf(stage, job.id)).toMatchObject([
    { parentToolCallId: `call-4-${LEGIBLE}`, result: `of the child ${LEGIBLE}` },
  ])
  // Every call has found its result again: nothing is open in the message, and the model has read each.
  const parts = (await answerOf(stage, job.id)).filter((part) => 'toolCallId' in part)
  expect(parts.map(({ state }) => state)).toEqual([
    'output-available',
    'output-error',
    'output-error',
    'output-available',
  ])
  const { input } = raw.requests('be hostile').at(-1)?.body ?? {}
  const items: { type?: string }[] = Array.isArray(input) ? input : []
  expect(items.filter(({ type }) => type === 'function_call_output')).toHaveLength(4)
})

test('LOSS-8: an emoji whose halves come in two deltas stays whole', async () => {
  raw.answer('split it', (reply) => {
    reply.text('a\ud83d')
    reply.text('\ude00b')
    reply.finish()
  })
  expect(await runRoot(stage, 'bot', 'split it')).toMatchObject({ state: 'completed', result: 'a😀b' })
})
