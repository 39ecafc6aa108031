import { createEmptyDatabase, type EmptyDatabase } from '@offshoot/testing/empty-database'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { deployMigrations } from './deploy-migrations.ts'
import { migrationNames } from './prisma-cli.ts'

let database: EmptyDatabase
beforeAll(async () => {
  database = await createEmptyDatabase()
})
afterAll(() => database.drop())

const history = async (where: string) => {
  const text = `select migration_name as "name" from "offshoot"."_prisma_migrations" where ${where} order by 1`
  return (await database.query<{ name: string }>(text)).map(({ name }) => name)
}

test('an empty database gets every migration; then there is nothing to do until one is missing', async () => {
  await deployMigrations(database.databaseUrl)
  expect(await history('finished_at is not null')).toEqual(await migrationNames())
  expect(await deployMigrations(database.databaseUrl)).toBe('No pending migrations to apply.\n')
  const last = (await migrationNames()).at(-1)
  await database.query(`delete from "offshoot"."_prisma_migrations" where migration_name = '${last}'`)
  // What it makes is there already, so it may fail; it is not passed over.
  await deployMigrations(database.databaseUrl).catch(() => undefined)
  expect(await history('true')).toEqual(await migrationNames())
})

test('a migration that failed is an error, and not counted as applied', async () => {
  await database.query(`
    update "offshoot"."_prisma_migrations" set finished_at = null
    where migration_name = (select max(migration_name) from "offshoot"."_prisma_migrations")`)
  await expect(deployMigrations(database.databaseUrl)).rejects.toThrow('P3009')
})
