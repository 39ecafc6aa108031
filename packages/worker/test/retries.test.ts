// An operator's retry with a real worker: what is stored is neither called nor paid again.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { retryAgent } from '@offshoot/shared/operations/retry-agent'
import { answerOf, readJob, runRoot } from '@offshoot/testing/agents'
import {
  callsTool,
  type RawModel,
  type RawRequest,
  type RawScript,
  says,
  startRawModel,
} from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl)
  await stage.putBot('bot')
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const retry = (jobId: string) => retryAgent(stage.runtime, { userId: 'alice', admin: false }, { jobId }, 'alice')

/** What a request gave the model to read. Postgres orders the keys of what it stores in its own way. */
function inputOf(request: RawRequest | undefined): unknown[] {
  const items: { arguments?: string; output?: string }[] = Array.isArray(request?.body['input'])
    ? request.body['input']
    : []
  return items.map((item) => ({
    ...item,
    arguments: JSON.parse(item.arguments ?? 'null'),
    output: JSON.parse(item.output ?? 'null'),
  }))
}

/** A step with a text and a tool call, as the first of two. */
const firstStep: RawScript = (reply) => {
  reply.text('Let me look.')
  reply.call('checkAgent', { jobId: 'nothing' }, 'call_check')
  reply.finish()
}
const badKey: RawScript = (reply) => reply.status(401, { message: 'expired' })

const textsOf = async (jobId: string) =>
  (await answerOf(stage, jobId)).flatMap((part) => (part.type === 'text' ? [part.text] : []))

test('a retried job goes on after its stored steps: no model call and no tool call is paid twice', async () => {
  raw.answer('go on', firstStep, badKey, says('done'))
  const failed = await runRoot(stage, 'bot', 'go on')
  expect(failed).toMatchObject({ state: 'failed', reason: 'model_auth', steps: 1, totalTokens: 15n })
  expect(await retry(failed.id)).toMatchObject({ kind: 'retried' })
  const job = await waitUntil(async () => {
    const row = await readJob(stage, failed.id)
    return row.state === 'completed' && row
  })
  expect(job).toMatchObject({ generation: 2, result: 'done', steps: 2, totalTokens: 30n, partial: false })
  const requests = raw.requests('go on')
  expect(requests).toHaveLength(3)
  // The retried call is the very one that had failed.
  expect(inputOf(requests[2])).toEqual(inputOf(requests[1]))
  expect(await stage.runtime.database.agentToolCall.count({ where: { jobId: job.id } })).toBe(1)
  expect(await textsOf(job.id)).toEqual(['Let me look.', 'done'])
})

test('a step cut by the output limit is made again by a retry, and only that one', async () => {
  raw.answer(
    'be short',
    firstStep,
    (reply) => {
      reply.text('Too lo')
      reply.finish({ incomplete: 'max_output_tokens' })
    },
    says('Short.'),
  )
  const failed = await runRoot(stage, 'bot', 'be short')
  expect(failed).toMatchObject({ state: 'failed', reason: 'output_limit', steps: 2, totalTokens: 30n })
  await retry(failed.id)
  await waitUntil(async () => (await readJob(stage, failed.id)).state === 'completed')
  expect(await readJob(stage, failed.id)).toMatchObject({ result: 'Short.', steps: 2, totalTokens: 45n })
  const requests = raw.requests('be short')
  expect(requests).toHaveLength(3)
  expect(inputOf(requests[2])).toEqual(inputOf(requests[1]))
  expect(await textsOf(failed.id)).toEqual(['Let me look.', 'Short.'])
})

test('a retried parent takes the outcomes of its children as they are', async () => {
  const spawn = { bot: { botGroup: 'forge', botHandle: 'bot' }, message: 'the child' }
  raw.answer('the parent', callsTool('spawnAgent', spawn), badKey, says('with child'))
  raw.answer('the child', says('child done'))
  const failed = await runRoot(stage, 'bot', 'the parent')
  expect(failed).toMatchObject({ reason: 'model_auth' })
  await retry(failed.id)
  await waitUntil(async () => (await readJob(stage, failed.id)).state === 'completed')
  expect(raw.requests('the child')).toHaveLength(1)
})
