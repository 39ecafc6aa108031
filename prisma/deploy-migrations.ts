import { Client } from 'pg'
import { migrationNames, runPrisma } from './prisma-cli.ts'

/**
 * Brings the database to the last migration. Any number of processes may do so at once, on an empty database too: they take
 * turns under a lock of the database's, which Postgres frees when its holder dies, and only the first has work to do. (Prisma's own lock comes too late: after
 * the schema is made.) The lock belongs to a session, so `databaseUrl` must not lead through a transaction pooler.
 * @throws Error when the database cannot be reached or a migration fails.
 */
export async function deployMigrations(databaseUrl: string, signal?: AbortSignal) {
  const session = new Client({ connectionString: databaseUrl, connectionTimeoutMillis: 10_000 })
  let lost: Error | undefined
  session.on('error', (error) => (lost = error))
  try {
    await session.connect()
    await session.query(`select pg_advisory_lock(hashtextextended('offshoot: migrate', 0))`)
  } catch (cause) {
    throw new Error(`Cannot migrate the database ${withoutPassword(databaseUrl)}: ${messageOf(cause)}`, { cause })
  }
  try {
    if (await isUpToDate(session)) return 'No pending migrations to apply.\n'
    const { stdout } = await runPrisma(['migrate', 'deploy'], { databaseUrl, ...(signal && { signal }) })
    return stdout
  } finally {
    if (lost === undefined) await session.end()
  }
}

/** Whether all migrations of this version are applied, so that the CLI, which takes seconds, need not look. */
async function isUpToDate(session: Client) {
  const exists = `select to_regclass('"offshoot"."_prisma_migrations"') is not null as "exists"`
  if (!(await session.query<{ exists: boolean }>(exists)).rows[0]?.exists) return false
  const { rows } = await session.query<{ name: string; applied: boolean; failed: boolean }>(`
    select migration_name as "name",
      finished_at is not null and rolled_back_at is null as "applied",
      finished_at is null and rolled_back_at is null as "failed"
    from "offshoot"."_prisma_migrations"`)
  const applied = new Set(rows.filter((row) => row.applied).map((row) => row.name))
  return !rows.some((row) => row.failed) && (await migrationNames()).every((name) => applied.has(name))
}

function withoutPassword(databaseUrl: string) {
  return databaseUrl.replace(/:[^:@/]*@/, ':…@')
}

/** A refused connection to a name with several addresses is an AggregateError without a message of its own. */
function messageOf(error: unknown): string {
  if (error instanceof AggregateError) return error.errors.map(messageOf).join('; ')
  return error instanceof Error ? error.message : String(error)
}
