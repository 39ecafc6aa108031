// The presence lock: held for as long as its worker wants it, and no longer.
import { Client } from 'pg'
import { startTcpProxy } from '@offshoot/testing/tcp-proxy'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { holdPresenceLock, insertWorker, lookAtWorkers } from '../src/db/workers.ts'
import { newId } from '../src/ids.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ environment: { LOG_LEVEL: 'silent' } })
})
afterAll(() => stage.close())

async function presence(databaseUrl: string) {
  const worker = await insertWorker(stage.runtime.database, { id: newId(), host: 'h', pid: 1, lanes: [] })
  const { logger } = stage.runtime
  const lock = await holdPresenceLock({ databaseUrl, worker, logger, onRegained: () => undefined })
  return { worker, lock }
}

async function isHeld(workerId: string): Promise<boolean> {
  const sights = await lookAtWorkers(stage.runtime.database, 60_000)
  return sights.some((sight) => sight.id === workerId && sight.lockHeld)
}

/** How many sessions wait for an advisory lock. */
async function waiting(): Promise<number> {
  const rows = await stage.runtime.database.$queryRaw<unknown[]>`
    select 1 from pg_locks where "locktype" = 'advisory' and not "granted"
      and "database" = (select oid from pg_database where datname = current_database())`
  return rows.length
}

test('STUCK-7: a lock that is given up while it is being taken again is not held afterwards', async () => {
  const { worker, lock } = await presence(stage.config.DATABASE_URL)
  const other = new Client({ connectionString: stage.config.DATABASE_URL })
  await other.connect()
  const [held] = await stage.runtime.database.$queryRaw<{ class: number; key: number; pid: number }[]>`
    select classid::int as "class", objid::int as "key", pid from pg_locks
    where "locktype" = 'advisory' and "granted" and "database" = (select oid from pg_database where datname = current_database())`
  const taken = other.query('select pg_advisory_lock($1, $2)', [held?.class, held?.key])
  await waitUntil(async () => (await waiting()) === 1)
  await stage.runtime.database.$queryRaw`select pg_terminate_backend(${held?.pid}::int)`
  await taken
  await waitUntil(async () => (await waiting()) === 1)
  await lock.close()
  await other.end()
  await expect.poll(waiting).toBe(0)
  await expect.poll(() => isHeld(worker.id)).toBe(false)
})

test('STUCK-14: a lock whose session fell silent is given up all the same', async () => {
  const way = await startTcpProxy(stage.config.DATABASE_URL)
  const { lock } = await presence(way.url)
  way.silenceThose('offshoot-presence')
  await expect(lock.close()).resolves.toBeUndefined()
  await way.close()
})
