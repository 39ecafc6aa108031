// Connections to Postgres that the network has dropped without a word: whoever waits for their answer asks on new ones.
import { loadConfig } from '@offshoot/shared/config'
import { openRuntime, type Runtime } from '@offshoot/shared/runtime'
import { endOf, readJob, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { startTcpProxy, type TcpProxy } from '@offshoot/testing/tcp-proxy'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { startWorker, type WorkerProcess } from '../src/worker.ts'

let raw: RawModel
let stage: TestStage
let way: TcpProxy
let runtime: Runtime
let worker: WorkerProcess

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openTestStage({ environment: { OPENAI_BASE_URL: raw.baseUrl, LOG_LEVEL: 'silent' } })
  await stage.putBot('bot')
  way = await startTcpProxy(stage.config.DATABASE_URL)
  const config = loadConfig({ ...stage.environment, DATABASE_URL: way.url })
  runtime = openRuntime({ ...stage.runtime, config, name: 'proxied' })
  worker = await startWorker(runtime)
})

afterAll(async () => {
  await worker.drain()
  await runtime.close()
  await way.close()
  await stage.close()
  await raw.stop()
})

/** The worker's row, with the time of its last heartbeat. */
const rows = () => stage.runtime.database.worker.findMany({ select: { id: true, seenAt: true } })

test('STUCK-7: a worker whose heartbeat is not answered any more asks on another connection, and keeps its runs', async () => {
  const goOn = Promise.withResolvers<void>()
  raw.answer('go on', async (reply, request) => {
    reply.text('I think. ')
    await goOn.promise
    await says('Done.')(reply, request)
  })
  const { id } = await spawnRoot(stage, 'bot', 'go on')
  await untilLiveText(stage, id, 'I think.')
  const [before] = await rows()
  await waitUntil(async () => (await rows())[0]?.seenAt.getTime() !== before?.seenAt.getTime())
  way.silenceThose('offshoot-heartbeat')
  const silentAt = performance.now()
  const { claimToken } = await readJob(stage, id)
  // Another one may have its jobs after a lock's length without a heartbeat.
  await waitUntil(() => performance.now() - silentAt > stage.config.WORKER_LOCK_MS)
  expect(await rows()).toMatchObject([{ id: before?.id }])
  expect(await readJob(stage, id)).toMatchObject({ state: 'running', claimToken })
  goOn.resolve()
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'I think. Done.', attempt: 1, crashes: 0 })
})

test('STUCK-7: a worker that was declared lost starts again although its presence session does not answer any more', async () => {
  const [before] = await rows()
  way.silenceThose('offshoot-presence')
  await stage.runtime.database.worker.deleteMany()
  const again = await waitUntil(async () => {
    const [row] = await rows()
    return row !== undefined && row.id !== before?.id && row
  })
  await waitUntil(async () => (await rows())[0]?.seenAt.getTime() !== again.seenAt.getTime())
  expect(await rows()).toMatchObject([{ id: again.id }])
  raw.answer('who is there', says('I am'))
  const { id } = await spawnRoot(stage, 'bot', 'who is there')
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', workerId: again.id, attempt: 1 })
})
