// A migration is one transaction, whatever stands in it.
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { createFreshDatabase, type FreshDatabase } from '@offshoot/testing/fresh-database'
import { Client } from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { projectFolder, runPrisma } from './prisma-cli.ts'

let database: FreshDatabase
let session: Client
let folder: string
beforeAll(async () => {
  database = await createFreshDatabase()
  session = new Client({ connectionString: database.databaseUrl })
  await session.connect()
  // As on a database that has seen no migration.
  await session.query('drop schema "offshoot" cascade')
  // Inside the project, so that the CLI finds the packages that the config imports.
  folder = await mkdtemp(path.join(projectFolder, '.offshoot', 'migrations-'))
})
afterAll(async () => {
  await session.end()
  await database.drop()
  await rm(folder, { recursive: true, force: true })
})

/** Deploys one migration, which is this SQL, to the database. */
async function deploy(name: string, sql: string): Promise<void> {
  await mkdir(path.join(folder, `20260101000000_${name}`))
  await writeFile(path.join(folder, 'migration_lock.toml'), 'provider = "postgresql"\n')
  await writeFile(path.join(folder, `20260101000000_${name}`, 'migration.sql'), sql)
  const config = {
    schema: path.join(projectFolder, 'prisma/schema.prisma'),
    migrations: { path: folder },
    datasource: { url: database.databaseUrl },
  }
  const file = path.join(folder, 'config.mjs')
  await writeFile(file, `export default ${JSON.stringify(config)}\n`)
  await runPrisma(['migrate', 'deploy', '--config', file], { databaseUrl: database.databaseUrl })
}

const tableOf = async (name: string) =>
  (await session.query('select to_regclass($1)::text as "found"', [`offshoot."${name}"`])).rows[0].found

test('the body of a function keeps its semicolons, and a migration that fails leaves nothing behind', async () => {
  await deploy(
    'function',
    `CREATE TABLE "offshoot"."Kept" ("n" INTEGER);
     -- a comment; with a semicolon
     CREATE FUNCTION "offshoot"."two"() RETURNS INTEGER LANGUAGE plpgsql AS $$ BEGIN PERFORM 1; RETURN 2; END $$;`,
  )
  expect(await tableOf('Kept')).not.toBeNull()
  expect((await session.query('select offshoot.two() as "two"')).rows[0].two).toBe(2)

  await rm(path.join(folder, '20260101000000_function'), { recursive: true })
  const failing = deploy('failing', `CREATE TABLE "offshoot"."Half" ("n" INTEGER); SELECT 1 / 0;`)
  await expect(failing).rejects.toThrow('division by zero')
  expect(await tableOf('Half')).toBeNull()
})
