// A run that is stopped while Postgres does not take its last step: it ends for its own reason, or goes to another worker,
// and keeps what its model has said.
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { abort, answerOf, endOf, readJob, spawnOf, spawnRoot } from '@offshoot/testing/agents'
import { callsTool, type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { startWorker } from '../src/worker.ts'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage
let askPostgres: WorkerStage['runtime']['database']['direct']['$queryRaw']

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { environment: { LOG_LEVEL: 'silent', WORKER_DRAIN_MS: '100' } })
  await stage.putBot('bot', { toolNames: ['spawnAgent'] })
  askPostgres = stage.runtime.database.direct.$queryRaw
})

afterEach(() => {
  stage.runtime.database.direct.$queryRaw = askPostgres
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const OUTPUT = 'insert into "offshoot"."AgentStep"'
const WHOLE_STEP = '"responseMessages" = $'

/** Resolves once Postgres has refused a statement like this; it does so until `afterEach`, or `until` then. */
function refuse(statement: string, until: () => Promise<boolean> = async () => false): Promise<void> {
  const refused = Promise.withResolvers<void>()
  stage.runtime.database.direct.$queryRaw = async (query) => {
    if (!query.text.includes(statement) || (await until())) return askPostgres(query)
    refused.resolve()
    throw Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })
  }
  return refused.promise
}

const spawns = callsTool('spawnAgent', spawnOf('bot', 'a child', { mode: 'async' }))

test('STATE-2: an abort then is an abort', async () => {
  raw.answer('spawn', spawns)
  const refused = refuse(WHOLE_STEP)
  const { id } = await spawnRoot(stage, 'bot', 'spawn')
  await refused
  expect(await abort(stage, id)).toMatchObject({ state: 'aborted' })
  expect(await readJob(stage, id)).toMatchObject({ state: 'aborted', reason: 'aborted_by_user', steps: 1 })
})

test('STATE-3: a deadline that passes then is timeout_total', async () => {
  raw.answer('be late', spawns)
  void refuse(WHOLE_STEP)
  const { id } = await spawnRoot(stage, 'bot', 'be late', { timeoutSeconds: 1 })
  expect(await endOf(stage, id)).toMatchObject({ state: 'failed', reason: 'timeout_total', steps: 1 })
})

test.each([
  ['when its output can be stored', true],
  ['when it cannot', false],
])('LOSS-3: what a model has said whole is kept by an abort then, and counted once, %s', async (when, canBeStored) => {
  const message = `too long ${when}`
  raw.answer(message, (reply) => {
    reply.text('as far as it')
    reply.finish({ incomplete: 'max_output_tokens' })
  })
  let jobId = ''
  const isAborted = async () => (await readJob(stage, jobId)).abortRequestedAt !== null
  const refused = refuse(OUTPUT, canBeStored ? isAborted : undefined)
  jobId = (await spawnRoot(stage, 'bot', message)).id
  await refused
  expect(await abort(stage, jobId)).toMatchObject({ state: 'aborted', partialResult: 'as far as it' })
  const counted = canBeStored
    ? { steps: 1, totalTokens: 15n, estimatedInputTokens: null }
    : { steps: 0, totalTokens: null, estimatedInputTokens: 10n, estimatedOutputTokens: 5n }
  expect(await readJob(stage, jobId)).toMatchObject({ result: 'as far as it', ...counted })
  expect(await answerOf(stage, jobId)).toMatchObject([{ type: 'step-start' }, { type: 'text', text: 'as far as it' }])
})

test('LOSS-11: a worker that is drained then hands its job over, whose model is not asked again', async () => {
  raw.answer('go on', spawns, says('went on'))
  raw.answer('a child', says('hello'))
  const refused = refuse(WHOLE_STEP)
  const { id } = await spawnRoot(stage, 'bot', 'go on')
  await refused
  await stage.worker.drain()
  expect(await readJob(stage, id)).toMatchObject({ state: 'pending', deliverySeq: 2 })
  stage.runtime.database.direct.$queryRaw = askPostgres
  stage.worker = await startWorker(stage.runtime)
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'went on', attempt: 2, steps: 2 })
  await waitUntil(() => raw.requests('a child').length === 1)
  expect(raw.requests('go on')).toHaveLength(2)
})
