// A claim that stands in a live worker's name although no run there knows of it.
import { claimJob } from '@offshoot/shared/db/agent-jobs'
import { newId } from '@offshoot/shared/ids'
import { endOf, readJob, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { environment: { WORKER_LOCK_MS: '3000', LOG_LEVEL: 'silent' } })
  await stage.putBot('bot')
  await stage.putBot('away', { lane: 'elsewhere' })
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const workerRow = () => stage.runtime.database.worker.findFirstOrThrow()

/** A job that stands in the worker's name, and does not run there. */
async function stray(message: string) {
  const { id: jobId, rootJobId } = await spawnRoot(stage, 'away', message)
  const { id: workerId } = await workerRow()
  const claim = { jobId, token: newId(), deliverySeq: 1, workerId }
  expect(await claimJob(stage.runtime.database, claim)).not.toBeNull()
  return { jobId, rootJobId }
}

const untilBack = (jobId: string) =>
  waitUntil(async () => {
    const row = await readJob(stage, jobId)
    return row.state === 'pending' && row
  })

test('STUCK-7: a claim whose answer was lost is given back by its own worker', async () => {
  const { jobId } = await stray('hello')
  expect(await untilBack(jobId)).toMatchObject({ claimToken: null, deliverySeq: 2, crashes: 0 })
})

test('COST-4: one whose tree somebody holds keeps neither the heartbeat nor another one waiting', async () => {
  const goOn = Promise.withResolvers<void>()
  raw.answer('go on', async (reply, request) => {
    reply.text('I think. ')
    await goOn.promise
    await says('Done.')(reply, request)
  })
  const { id } = await spawnRoot(stage, 'bot', 'go on')
  await untilLiveText(stage, id, 'I think.')
  const strays = [await stray('held'), await stray('free')]
  await stage.runtime.database.$transaction(
    async (tx) => {
      await tx.$queryRaw`set local idle_in_transaction_session_timeout = 0`
      await tx.$queryRaw`select 1 from "offshoot"."AgentTree" where "rootJobId" = ${strays[0]?.rootJobId} for update`
      await untilBack(strays[1]?.jobId ?? '')
      const { seenAt } = await workerRow()
      const lockMs = stage.config.WORKER_LOCK_MS
      await waitUntil(async () => (await workerRow()).seenAt.getTime() - seenAt.getTime() > 2 * lockMs)
    },
    { timeout: 60_000 },
  )
  await untilBack(strays[0]?.jobId ?? '')
  goOn.resolve()
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'I think. Done.', attempt: 1 })
})
