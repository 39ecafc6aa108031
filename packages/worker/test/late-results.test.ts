// What an attempt has to tell when its job is not its own any more.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { makePending } from '@offshoot/shared/db/agent-jobs'
import { loadSteps } from '@offshoot/shared/db/journal'
import { finishInTransaction } from '@offshoot/shared/operations/finish-agent'
import { handBack } from '@offshoot/shared/operations/hand-back'
import { lockTree, transact } from '@offshoot/shared/operations/transact'
import { answerOf, endOf, eventsOf, readJob, runRoot, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { type RawModel, type RawScript, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { environment: { LOG_LEVEL: 'silent' } })
  await stage.putBot('bot')
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const lateResultsOf = async (jobId: string) => {
  const events = await stage.runtime.database.agentEvent.findMany({ where: { jobId, kind: 'late-result' } })
  return events.map(({ data }) => data)
}
const untilLate = (jobId: string) =>
  waitUntil(async () => (await lateResultsOf(jobId)).length > 0, { what: 'a late result' })

test('STATE-14: what a worker brings after the reaper has ended its job is kept in the history, and changes nothing', async () => {
  const finish = Promise.withResolvers<void>()
  raw.answer('be late', async (reply) => {
    reply.text('too late '.repeat(300))
    await finish.promise
    reply.finish()
  })
  const job = await spawnRoot(stage, 'bot', 'be late')
  await untilLiveText(stage, job.id, 'too late')
  const { workerId } = await readJob(stage, job.id)
  // Holds the lock that the end needs, and is the reaper meanwhile.
  await transact(stage.runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    finish.resolve()
    await waitUntil(async () => (await loadSteps(stage.runtime.database, job.id))[0]?.responseMessages)
    await makePending(tx.db, job.id, { lostWorkerId: workerId ?? '' })
    await finishInTransaction(tx, job.id, {
      guard: 'unclaimed',
      ending: { state: 'failed', reason: 'worker_lost', result: null, error: 'The worker was lost.', partial: true },
    })
  })
  const ended = await readJob(stage, job.id)
  const answer = await answerOf(stage, job.id)
  await untilLate(job.id)
  expect(await lateResultsOf(job.id)).toEqual([
    {
      outcome: 'completed',
      reason: 'completed',
      result: 'too late '.repeat(300).slice(0, 2_000),
      attempt: 1,
      generation: 1,
    },
  ])
  expect(await readJob(stage, job.id)).toEqual(ended)
  expect(ended).toMatchObject({ state: 'failed', reason: 'worker_lost', result: null })
  expect(await answerOf(stage, job.id)).toEqual(answer)
  expect(await eventsOf(stage, job.id)).toEqual(['spawned', 'ended', 'late-result'])
})

const lingers: RawScript = async (reply) => {
  reply.text('I linger')
  await reply.closed
}

test('STATE-14: an attempt that is cut by the loss of its claim keeps what it had said and spent, and no more', async () => {
  raw.answer('be slow', lingers, says('quick'))
  const { id } = await spawnRoot(stage, 'bot', 'be slow')
  await untilLiveText(stage, id, 'I linger')
  const job = await readJob(stage, id)
  await handBack(stage.runtime, job, { lostWorkerId: job.workerId ?? '' }, 'worker-lost')
  await untilLate(id)
  expect(await endOf(stage, id)).toMatchObject({
    state: 'completed',
    result: 'quick',
    attempt: 2,
    // What the lost attempt has spent is nobody's to write any more.
    inputTokens: 10n,
    estimatedInputTokens: null,
  })
  expect(await lateResultsOf(id)).toMatchObject([
    { outcome: 'cut', result: 'I linger', attempt: 1, usage: { outputTokens: 2, inputTokens: expect.any(Number) } },
  ])
})

test('an attempt that had nothing to tell leaves no trace, and one that ends its own job has none that is late', async () => {
  raw.answer('say it', says('said'))
  const { id } = await runRoot(stage, 'bot', 'say it')
  expect(await eventsOf(stage, id)).toEqual(['spawned', 'ended'])
})
