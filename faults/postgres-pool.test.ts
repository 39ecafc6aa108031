// Many more streaming jobs than connections.
import { endOf, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { openServiceStage, type ServiceStage } from '@offshoot/testing/service-stage'
import { afterAll, beforeAll, expect, test } from 'vitest'

const JOBS = 50
const POOL = 5
const CHECKS = 100
const CHECK_LIMIT_MS = 200

let stage: ServiceStage

beforeAll(async () => {
  const environment = { DATABASE_POOL_SIZE: String(POOL), WORKER_CONCURRENCY: String(JOBS), WORKER_LOCK_MS: '5000' }
  stage = await openServiceStage({ workers: 1, environment })
})
afterAll(() => stage.close())

interface Sessions {
  total: number
  /** In a transaction that waits for its client, as one around a model call would. */
  held: number
}

async function sessionsOf(applicationName: string): Promise<Sessions> {
  const [row] = await stage.runtime.database.$queryRaw<Sessions[]>`
    select count(*)::int as "total", count(*) filter (where state like 'idle in transaction%')::int as "held"
    from pg_stat_activity where datname = current_database() and application_name = ${applicationName}`
  if (row === undefined) throw new Error('count(*) answered no row')
  return row
}

test('STUCK-15: 50 streaming jobs hold no connection of a pool of 5, and a check takes under 200 ms at p95', async () => {
  const { raw, api } = stage
  const over = Promise.withResolvers<void>()
  raw.answer('stream', async (reply) => {
    const timer = setInterval(() => reply.text('tick '), 50)
    await over.promise
    clearInterval(timer)
    reply.finish()
  })
  const jobs = await Promise.all(Array.from({ length: JOBS }, () => spawnRoot(stage, 'bot', 'stream')))
  await Promise.all(jobs.map(({ id }) => untilLiveText(stage, id, 'tick')))

  const tookMs: number[] = []
  for (let at = 0; at < CHECKS; at += 1) {
    const before = performance.now()
    const response = await api.fetch('alice', `/v1/agents/${jobs[at % JOBS]?.id}`)
    const body: unknown = await response.json()
    tookMs.push(performance.now() - before)
    expect(body).toMatchObject({ state: 'running' })
    const sessions = await sessionsOf('offshoot-worker')
    expect(sessions.total).toBeLessThanOrEqual(POOL)
    expect(sessions.held).toBe(0)
  }
  tookMs.sort((a, b) => a - b)
  expect(tookMs[Math.ceil(CHECKS * 0.95) - 1]).toBeLessThan(CHECK_LIMIT_MS)

  over.resolve()
  for (const { id } of jobs) expect(await endOf(stage, id, 30_000)).toMatchObject({ state: 'completed', attempt: 1 })
  expect(raw.requests('stream')).toHaveLength(JOBS)
})
