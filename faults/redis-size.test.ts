// How much of Redis long results take: next to nothing, once their jobs have ended.
import path from 'node:path'
import { isTerminal } from '@offshoot/shared/contracts/job-state'
import { spawnRoot } from '@offshoot/testing/agents'
import { type Fleet, startFleet } from '@offshoot/testing/fleet'
import { type OwnRedis, startOwnRedis } from '@offshoot/testing/own-redis'
import { type RawModel, type RawScript, startRawModel } from '@offshoot/testing/raw-model'
import { redisCommand } from '@offshoot/testing/redis-command'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'

const MB = 1_000_000
const ANSWER = 'x'.repeat(2 * MB)
/** The chunks in which the model says one. */
const PIECES = 16
const CALLS_A_JOB = 10

/** Ten results of a tool; then, with their heads and tails in its context, a short answer. */
const callsTenTimes: RawScript = (reply, { body }) => {
  const items: { type?: string }[] = Array.isArray(body['input']) ? body['input'] : []
  if (items.some(({ type }) => type === 'function_call_output')) reply.text('given')
  else for (let at = 0; at < CALLS_A_JOB; at += 1) reply.call('bulky', {}, `call_${at}`)
  reply.finish()
}

const saysMuch: RawScript = async (reply) => {
  for (let at = 0; at < PIECES; at += 1) {
    reply.text(ANSWER.slice(0, ANSWER.length / PIECES))
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  reply.finish()
}

let redis: OwnRedis
let raw: RawModel
let stage: TestStage
let fleet: Fleet
beforeAll(async () => {
  redis = await startOwnRedis()
  raw = await startRawModel()
  stage = await openTestStage({
    environment: {
      REDIS_URL: redis.url,
      OPENAI_BASE_URL: raw.baseUrl,
      OFFSHOOT_CONFIG: path.join(import.meta.dirname, 'bulky.offshoot.ts'),
      MAX_ACTIVE_JOBS_PER_USER: '1000',
      WORKER_CONCURRENCY: '8',
      // So much text keeps a worker busy for seconds; it is not lost for that.
      WORKER_LOCK_MS: '30000',
    },
  })
  await stage.putBot('bot', { toolNames: ['bulky'] })
  raw.answer('give', callsTenTimes)
  raw.answer('say', saysMuch)
  fleet = await startFleet(stage, 2)
})
afterAll(async () => {
  await fleet.stop()
  await stage.close()
  await redis.stop()
  await raw.stop()
})

async function usedMemory(): Promise<number> {
  const info = await redisCommand(redis.url, 'INFO', 'memory')
  return Number(/used_memory:(\d+)/.exec(String(info))?.[1])
}

test(
  'LOSS-20: 200 results of 2 MB, 100 of a tool and 100 said, grow Redis by less than 20 MB',
  { timeout: 300_000 },
  async () => {
    const before = await usedMemory()
    const jobs: string[] = []
    for (let at = 0; at < 100; at += 1) jobs.push((await spawnRoot(stage, 'bot', 'say')).id)
    for (let at = 0; at < 100 / CALLS_A_JOB; at += 1) jobs.push((await spawnRoot(stage, 'bot', 'give')).id)
    const { database } = stage.runtime
    const ended = await waitUntil(
      async () => {
        const rows = await database.agentJob.findMany({ where: { id: { in: jobs } }, select: { state: true } })
        return rows.every(({ state }) => isTerminal(state)) && rows
      },
      { within: 280_000, what: 'the end of all jobs' },
    )
    expect(ended.every(({ state }) => state === 'completed')).toBe(true)
    expect(await database.blob.count()).toBe(100)
    await waitUntil(async () => (await database.outbox.count({ where: { doneAt: null } })) === 0)
    expect((await usedMemory()) - before).toBeLessThan(20 * MB)
  },
)
