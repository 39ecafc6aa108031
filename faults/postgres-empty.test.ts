// A database that nobody has migrated, and several processes that begin on it at once.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { createEmptyDatabase, type EmptyDatabase } from '@offshoot/testing/empty-database'
import { startApiProcess, startWorkerProcess } from '@offshoot/testing/processes'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { migrationNames, projectFolder } from '../prisma/prisma-cli.ts'

const ROUNDS = 10
const PROCESSES = 5

let database: EmptyDatabase
beforeEach(async () => {
  database = await createEmptyDatabase()
})
afterEach(() => database.drop())

const run = promisify(execFile)

async function deploy(): Promise<void> {
  const env = { ...process.env, DATABASE_URL: database.databaseUrl }
  await run(process.execPath, ['prisma/run-prisma.ts', 'deploy'], { cwd: projectFolder, env })
}

const deployAtOnce = () => Promise.all(Array.from({ length: PROCESSES }, deploy))

const rounds = Array.from({ length: ROUNDS }, (_, at) => at + 1)

test.for(rounds)('STUCK-16: five processes that migrate at once leave one history; round %i', async () => {
  await deployAtOnce()
  const history = await database.query<{ name: string; applied: boolean }>(`
    select migration_name as "name", finished_at is not null and rolled_back_at is null as "applied"
    from "offshoot"."_prisma_migrations" order by migration_name`)
  expect(history).toEqual((await migrationNames()).map((name) => ({ name, applied: true })))
})

test('STUCK-16: five processes that start at once on what five have migrated at once are ready', async () => {
  await deployAtOnce()
  const environment = {
    DATABASE_URL: database.databaseUrl,
    REDIS_URL: process.env['REDIS_URL'] ?? '',
    QUEUE_PREFIX: `{empty-${process.pid}}`,
    LOG_LEVEL: 'error',
  }
  const starts = [startApiProcess, startApiProcess, startWorkerProcess, startWorkerProcess, startWorkerProcess]
  const started = await Promise.all(starts.map((start) => start(environment)))
  for (const { url } of started.slice(0, 2)) expect((await fetch(`${url}/readyz`)).status).toBe(200)
  await Promise.all(started.map((each) => each.stop()))
  for (const each of started) expect(await each.exited).toBe(0)
})
