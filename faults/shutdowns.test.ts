// Processes that are asked to end while something does not let them: a tool that hangs, a Redis that is gone, a Postgres
// that is locked. The limits are those of the two main.ts.
import { Client } from 'pg'
import { endOf, readJob, untilLiveText } from '@offshoot/testing/agents'
import { type FaultStage, openFaultStage } from '@offshoot/testing/fault-stage'
import { startOwnRedis } from '@offshoot/testing/own-redis'
import { startApiProcess, type TestProcess } from '@offshoot/testing/processes'
import { callsTool, type RawScript, says, stepOf } from '@offshoot/testing/raw-model'
import { afterAll, beforeAll, expect, test } from 'vitest'

const DRAIN_MS = 1_000
/** Until the exit is seen here. */
const SEEN_MS = 500
const WORKER_ENDS_WITHIN_MS = DRAIN_MS + 5_000 + SEEN_MS
const API_ENDS_WITHIN_MS = 15_000 + SEEN_MS

let stage: FaultStage
beforeAll(async () => {
  stage = await open(2)
})
afterAll(() => stage.close())

function open(workers: number, environment: Record<string, string> = {}): Promise<FaultStage> {
  return openFaultStage({ workers, environment: { WORKER_DRAIN_MS: String(DRAIN_MS), ...environment } })
}

/** Asks a process to end, and answers with its exit code and the milliseconds that it took. */
async function end(process: TestProcess): Promise<{ code: unknown; afterMs: number }> {
  const askedAt = performance.now()
  process.kill('SIGTERM')
  const code = await process.exited
  return { code, afterMs: performance.now() - askedAt }
}

/** Says something, and then nothing for as long as the other side listens; whoever asks again gets an answer. */
function lingersOnce(): RawScript {
  let calls = 0
  return async (reply, request) => {
    calls += 1
    if (calls > 1) return says('I go on.')(reply, request)
    reply.text('I linger.')
    return reply.closed
  }
}

test('STUCK-14: a worker with a tool that hangs ends within its limit, with exit code 0, and the job goes on elsewhere', async () => {
  const [job] = await stage.spawnAgents(['hangs'], (reply, request) =>
    stepOf(request) === 0
      ? callsTool('hold', { text: 'for ever' }, 'call_0')(reply, request)
      : says('I was told.')(reply, request),
  )
  await stage.untilNote('begins for ever')
  const { code, afterMs } = await end(await stage.fleet.workerOf(job?.id ?? ''))
  expect(code).toBe(0)
  expect(afterMs).toBeLessThan(WORKER_ENDS_WITHIN_MS)
  expect(await endOf(stage, job?.id ?? '')).toMatchObject({ state: 'completed', result: 'I was told.', crashes: 0 })
})

test.each(['AgentJob', 'Worker'])(
  'STUCK-14: with Postgres locked at %s a worker and an API end within their limits, with exit code 0, and the job goes on when it is free',
  async (table) => {
    await stage.fleet.replenish()
    const api = await startApiProcess(stage.environment)
    const [job] = await stage.spawnAgents([`lingers at ${table}`], lingersOnce())
    const { id } = job ?? { id: '' }
    await untilLiveText(stage, id, 'I linger.')
    const worker = await stage.fleet.workerOf(id)
    const session = new Client({ connectionString: stage.environment['DATABASE_URL'] })
    await session.connect()
    try {
      await session.query('begin')
      await session.query(`lock table "offshoot"."${table}" in access exclusive mode`)
      const [workerEnd, apiEnd] = await Promise.all([end(worker), end(api)])
      expect([workerEnd.code, apiEnd.code]).toEqual([0, 0])
      expect(workerEnd.afterMs).toBeLessThan(WORKER_ENDS_WITHIN_MS)
      expect(apiEnd.afterMs).toBeLessThan(API_ENDS_WITHIN_MS)
    } finally {
      await session.end()
    }
    expect(await endOf(stage, id, 20_000)).toMatchObject({ state: 'completed', result: 'I go on.', steps: 1 })
  },
)

test('STUCK-14: without Redis a worker and an API end within their limits, and the job is handed back', async () => {
  const redis = await startOwnRedis()
  const cutOff = await open(1, { REDIS_URL: redis.url, LOG_LEVEL: 'fatal' })
  const api = await startApiProcess(cutOff.environment)
  const [job] = await cutOff.spawnAgents(['lingers'], lingersOnce())
  const { id } = job ?? { id: '' }
  await untilLiveText(cutOff, id, 'I linger.')
  const worker = await cutOff.fleet.workerOf(id)
  await redis.stop()
  const [workerEnd, apiEnd] = await Promise.all([end(worker), end(api)])
  expect(workerEnd.code).toBe(0)
  expect(workerEnd.afterMs).toBeLessThan(WORKER_ENDS_WITHIN_MS)
  expect(apiEnd.code).toBe(0)
  expect(apiEnd.afterMs).toBeLessThan(API_ENDS_WITHIN_MS)
  expect(await readJob(cutOff, id)).toMatchObject({ state: 'pending', claimToken: null, attempt: 1, deliverySeq: 2 })
  await cutOff.close()
})
