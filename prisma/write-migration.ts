// Each migration folder holds a copy of schema.prisma as that migration leaves it. The next migration is the difference
// from the last copy: no database is asked, and a folder that is deleted again leaves no trace.
import { copyFile, mkdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { migrationNames, migrationsFolder, runPrisma, schemaFile } from './prisma-cli.ts'

/**
 * Writes what leads from the last migration to prisma/schema.prisma as a new one, to be read, completed by hand where Prisma
 * has no words (partial indexes, checks) and committed.
 * @returns the path of its SQL file
 * @throws Error when the name is unfit or there is nothing to migrate.
 */
export async function writeMigration(name: string) {
  if (!/^[a-z][a-z0-9]*(_[a-z0-9]+)*$/.test(name)) {
    throw new Error(`"${name}" is no name for a migration: use lower-case words joined by underscores, like add_lease.`)
  }
  const sql = await missingSql()
  if (sql === undefined) throw new Error('Nothing to migrate: prisma/schema.prisma is as the last migration left it.')
  const timestamp = new Date().toISOString().replaceAll(/\D/g, '').slice(0, 14)
  const folder = path.join(migrationsFolder, `${timestamp}_${name}`)
  await mkdir(folder)
  await writeFile(path.join(folder, 'migration.sql'), sql)
  await copyFile(schemaFile, path.join(folder, 'schema.prisma'))
  return path.join(folder, 'migration.sql')
}

/** @throws Error when prisma/schema.prisma holds what no migration makes. */
export async function checkMigrations() {
  if ((await missingSql()) === undefined) return
  throw new Error('prisma/schema.prisma holds what no migration makes: run `pnpm db:migration <name>`.')
}

async function missingSql() {
  const last = (await migrationNames()).at(-1)
  const from = last ? ['--from-schema', path.join(migrationsFolder, last, 'schema.prisma')] : ['--from-empty']
  const args = ['migrate', 'diff', ...from, '--to-schema', schemaFile, '--script', '--exit-code']
  const { code, stdout } = await runPrisma(args, { okCodes: [0, 2] })
  return code === 0 ? undefined : `${stdout.trim()}\n`
}
