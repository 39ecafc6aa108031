// A database that nobody has migrated, and several processes that begin on it at once.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { createEmptyDatabase, type EmptyDatabase } from '@offshoot/testing/empty-database'
import { startApiProcess, startWorkerProcess } from '@offshoot/testing/processes'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { migrationNames, projectFolder } from '../prisma/prisma-cli.ts'

const ROUNDS = 10
const STARTS = [startApiProcess, startApiProcess, startWorkerProcess, startWorkerProcess, startWorkerProcess]

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

const rounds = Array.from({ length: ROUNDS }, (_, at) => at + 1)

test.for(rounds)(
  'STUCK-16: five processes that start at once leave one history, and all are ready; round %i',
  async () => {
    const environment = {
      DATABASE_URL: database.databaseUrl,
      REDIS_URL: process.env['REDIS_URL'] ?? '',
      QUEUE_PREFIX: `{empty-${process.pid}}`,
      LOG_LEVEL: 'error',
    }
    // As a container starts that migrates first: none waits for the others.
    const started = await Promise.all(
      STARTS.map(async (start) => {
        await deploy()
        return start(environment)
      }),
    )
    const history = await database.query<{ name: string; applied: boolean }>(`
    select migration_name as "name", finished_at is not null and rolled_back_at is null as "applied"
    from "offshoot"."_prisma_migrations" order by migration_name`)
    expect(history).toEqual((await migrationNames()).map((name) => ({ name, applied: true })))
    const apis = started.filter(({ url }) => url !== '')
    expect(apis).toHaveLength(2)
    for (const { url } of apis) expect((await fetch(`${url}/readyz`)).status).toBe(200)
    expect(await database.query('select 1 from "offshoot"."Worker"')).toHaveLength(STARTS.length - apis.length)
    await Promise.all(started.map((each) => each.stop()))
    for (const each of started) expect(await each.exited).toBe(0)
  },
)
