import { readFileSync } from 'node:fs'
import path from 'node:path'
import { counted, seriesIn } from '@offshoot/testing/metrics'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ApiUnderTest, openApi, PLANNER } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi({ WORKER_LANES: 'default,slow' })
})
afterAll(() => api.close())

const scrape = async (from = api) => (await from.call('/metrics')).text()

/** Waits until a scrape says so: a reading is shared for a second. */
async function untilScraped(name: string, labels: Record<string, string>, value: number | undefined, from = api) {
  await waitUntil(async () => seriesIn(await scrape(from), name, labels) === value, {
    what: `${name}${JSON.stringify(labels)} ${value}`,
  })
}

test('/metrics is Prometheus text, needs no key, and tells of this process and of the fleet', async () => {
  const response = await api.call('/metrics')
  expect(response.status).toBe(200)
  expect(response.headers.get('content-type')).toBe('text/plain; version=0.0.4; charset=utf-8')
  const text = await response.text()
  expect(seriesIn(text, 'offshoot_up', { service: 'postgres' })).toBe(1)
  expect(seriesIn(text, 'offshoot_up', { service: 'redis' })).toBe(1)
  for (const lane of ['default', 'slow']) {
    expect(seriesIn(text, 'offshoot_slots_needed', { lane })).toBe(0)
    expect(seriesIn(text, 'offshoot_queue_depth', { lane })).toBe(0)
  }
  expect(seriesIn(text, 'offshoot_reconciler_findings_total', { kind: 'lost_wake' })).toBe(0)
  // Each line is a comment, a sample, or empty; each sample's metric is described.
  const described = new Set([...text.matchAll(/^# TYPE (\w+) /gm)].map(([, name]) => name))
  for (const line of text.split('\n')) {
    if (line === '' || line.startsWith('# ')) continue
    const [, name = '', , value] = /^(\w+)(\{(?:\w+="[^"\n]*",?)+\})? (\S+)$/.exec(line) ?? []
    expect(value, line).toMatch(/^(?:[\d.e+-]+|NaN|\+Inf)$/)
    expect(described.has(name) || described.has(name.replace(/_(bucket|sum|count)$/, '')), line).toBe(true)
  }
})

const names = (text: string, pattern: RegExp) =>
  [...new Set([...text.matchAll(pattern)].map(([, name = '']) => name))].toSorted()

test('docs/operations/metrics.md has every metric, and no other', async () => {
  const file = path.resolve(import.meta.dirname, '../../../docs/operations/metrics.md')
  const told = names(readFileSync(file, 'utf8'), /^\| `(offshoot_\w+)/gm)
  api.stage.runtime.metrics.watchJobs(() => 0) // as in a worker
  expect(told).toEqual(names(await scrape(), /^# TYPE (offshoot_\w+) /gm))
})

test('spawns, refusals and ends are counted, and no label holds an id', async () => {
  const jobId = await api.spawn()
  await api.finish(jobId, await api.claim(jobId))
  const queued = await api.spawn()
  await api.json('/v1/agents', { as: 'alice', body: { bot: { botId: 'none' }, message: 'x', mode: 'async' } })
  const { convoId } = (await api.json('/v1/convos', { as: 'alice', body: PLANNER })).body
  const turn = { messages: [{ role: 'user', parts: [{ type: 'text', text: 'hello' }] }] }
  const { headers, body } = await api.call(`/v1/convos/${String(convoId)}/messages`, { as: 'alice', body: turn })
  await body?.cancel()
  await untilScraped('offshoot_jobs_stored', {}, 3)
  const text = await scrape()
  const numbers = {
    async: seriesIn(text, 'offshoot_spawns_total', { mode: 'async' }),
    turn: seriesIn(text, 'offshoot_spawns_total', { mode: 'turn' }),
    refused: seriesIn(text, 'offshoot_spawn_refusals_total', { reason: 'unknown_bot' }),
    ended: seriesIn(text, 'offshoot_jobs_ended_total', { state: 'completed', reason: 'completed' }),
    line: seriesIn(text, 'offshoot_job_events_total', { kind: 'spawned' }),
  }
  expect(numbers).toEqual({ async: 2, turn: 1, refused: 1, ended: 1, line: 3 })
  for (const id of [jobId, queued, String(convoId), headers.get('x-agent-job-id') ?? '?', 'alice'])
    expect(text).not.toContain(id)
  expect(text).not.toMatch(/="[^"]*[0-9a-f]{8}-[0-9a-f]{4}-/)
})

test('a storm of scrapes costs one statement', async () => {
  const { database } = api.stage.runtime
  const waiting = async () => {
    const rows = await database.$queryRaw<{ sessions: number }[]>`
      select count(*)::int as "sessions" from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock' and query like '%as "children"%'`
    return rows[0]?.sessions
  }
  const scrapes: Promise<string>[] = []
  await database.$transaction(async (tx) => {
    await tx.$executeRaw`lock table "offshoot"."Outbox" in access exclusive mode`
    await waitUntil(async () => {
      scrapes.push(...Array.from({ length: 20 }, () => scrape()))
      return (await waiting()) !== 0
    })
    scrapes.push(...Array.from({ length: 50 }, () => scrape()))
    expect(await waiting()).toBe(1)
  })
  for (const text of await Promise.all(scrapes)) expect(seriesIn(text, 'offshoot_up', { service: 'redis' })).toBe(1)
})

describe('a service that is away fails no scrape', () => {
  test('LOSS-14: Redis: what Postgres knows is there, what Redis knows is absent', async () => {
    const away = await openApi({}, { cuttable: 'REDIS_URL' })
    try {
      await waitUntil(async () => (await away.call('/readyz')).status === 200)
      await away.claim(await away.spawn())
      await untilScraped('offshoot_queue_depth', { lane: 'default' }, 1, away)
      await away.service?.cut()
      await untilScraped('offshoot_up', { service: 'redis' }, 0, away)
      const text = await scrape(away)
      expect(seriesIn(text, 'offshoot_up', { service: 'postgres' })).toBe(1)
      expect(seriesIn(text, 'offshoot_slots_needed', { lane: 'default' })).toBe(1)
      expect(text).not.toContain('offshoot_queue_depth')
      await away.service?.mend()
      await untilScraped('offshoot_queue_depth', { lane: 'default' }, 1, away)
    } finally {
      await away.close()
    }
  })

  test('Postgres: what this process has counted is there, the fleet is absent', async () => {
    const away = await openApi({}, { cuttable: 'DATABASE_URL' })
    try {
      await away.spawn()
      await away.service?.cut()
      await untilScraped('offshoot_up', { service: 'postgres' }, 0, away)
      const text = await scrape(away)
      expect(seriesIn(text, 'offshoot_up', { service: 'redis' })).toBe(1)
      expect(seriesIn(text, 'offshoot_spawns_total', { mode: 'async' })).toBe(1)
      for (const gone of ['offshoot_slots_needed', 'offshoot_jobs_stored', 'offshoot_workers'])
        expect(text).not.toContain(gone)
      await away.service?.mend()
      await untilScraped('offshoot_slots_needed', { lane: 'default' }, 1, away)
    } finally {
      await away.close()
    }
  })
})

test('each process counts for itself', async () => {
  const other = await openApi()
  try {
    await other.spawn()
    expect(await counted(other.stage.runtime, 'offshoot_spawns_total', { mode: 'async' })).toBe(1)
    expect(await counted(api.stage.runtime, 'offshoot_spawns_total', { mode: 'async' })).toBe(2)
  } finally {
    await other.close()
  }
})
