// A model that keeps calling tools in ways that cannot be run.
import { tool } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { z } from 'zod'
import { handBack } from '@offshoot/shared/operations/hand-back'
import { retryAgent } from '@offshoot/shared/operations/retry-agent'
import { answerOf, endOf, readJob, runRoot, spawnRoot } from '@offshoot/testing/agents'
import { callsTool, type RawModel, type RawScript, says, startRawModel, staysSilent } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    environment: { LOG_LEVEL: 'silent' },
    extensions: {
      tools: [
        {
          id: 'add',
          group: 'test',
          userSelect: true,
          tool: tool({ inputSchema: z.object({ a: z.number(), b: z.number() }), execute: ({ a, b }) => a + b }),
        },
      ],
    },
  })
  await stage.putBot('bot', { toolNames: ['add', 'spawnAgent'] })
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const badInput = callsTool('add', { a: 'one' })
const unknownTool = callsTool('subtract', { a: 1, b: 1 })
const badSpawn = callsTool('spawnAgent', { bot: 'bot' })
const good = callsTool('add', { a: 1, b: 2 })
const mixed: RawScript = (reply) => {
  reply.call('add', { a: 'one' }, 'call_bad')
  reply.call('add', { a: 1, b: 2 }, 'call_good')
  reply.finish()
}
const brokenJson: RawScript = (reply) => {
  const item = { type: 'function_call', id: 'fc_0', call_id: 'call_broken', name: 'add' }
  reply.event({ type: 'response.output_item.added', output_index: 0, item: { ...item, arguments: '' } })
  const args = '{"a": 1, "b"'
  reply.event({
    type: 'response.output_item.done',
    output_index: 0,
    item: { ...item, arguments: args, status: 'completed' },
  })
  reply.finish()
}

const FAILED = {
  state: 'failed',
  reason: 'invalid_tool_input',
  error: 'The model kept calling tools with invalid input. (5 steps in a row)',
}

test('STATE-20: after five steps in a row of nothing but malformed calls the job fails, and no sixth is paid', async () => {
  raw.answer('stumble', badInput, brokenJson, unknownTool, badSpawn, badInput, says('never'))
  expect(await runRoot(stage, 'bot', 'stumble')).toMatchObject({ ...FAILED, steps: 5, totalTokens: 75n })
  expect(raw.requests('stumble')).toHaveLength(5)
})

test('STATE-20: a step with a valid call ends the row, whatever else it calls; its result is kept', async () => {
  const row = [badInput, badInput, badInput, badInput]
  raw.answer('stumble on', ...row, mixed, ...row, good, ...row, says('done'))
  const job = await runRoot(stage, 'bot', 'stumble on')
  expect(job).toMatchObject({ state: 'completed', result: 'done', steps: 15 })
  expect(await answerOf(stage, job.id)).toContainEqual(
    expect.objectContaining({ toolCallId: 'call_good', state: 'output-available', output: 3 }),
  )
})

test('STATE-20: the row goes on over a crash', async () => {
  raw.answer('stumble and fall', badInput, badInput, badInput, staysSilent, unknownTool, badInput, says('never'))
  const { id } = await spawnRoot(stage, 'bot', 'stumble and fall')
  await waitUntil(() => raw.requests('stumble and fall').length === 4)
  const job = await readJob(stage, id)
  // As the reconciler does with the job of a lost worker.
  await handBack(stage.runtime, job, { lostWorkerId: job.workerId ?? '' }, 'worker-lost')
  expect(await endOf(stage, id)).toMatchObject({ ...FAILED, steps: 5, attempt: 2 })
  expect(raw.requests('stumble and fall')).toHaveLength(6)
})

test('a retry makes the last of them again, and goes on when that is better', async () => {
  raw.answer('stumble and retry', badInput, badInput, badInput, badInput, badInput, good, says('well'))
  const { id } = await runRoot(stage, 'bot', 'stumble and retry')
  await retryAgent(stage.runtime, { userId: 'alice', admin: false }, { jobId: id }, 'alice')
  await waitUntil(async () => (await readJob(stage, id)).state === 'completed')
  expect(await readJob(stage, id)).toMatchObject({ result: 'well', steps: 6, generation: 2 })
})
