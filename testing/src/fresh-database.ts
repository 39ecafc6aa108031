import { Client } from 'pg'

export interface FreshDatabase {
  databaseUrl: string
  drop(): Promise<void>
}

/** A database of one's own, cloned from the migrated one that `DATABASE_URL` names. */
export async function createFreshDatabase(): Promise<FreshDatabase> {
  const template = process.env['DATABASE_URL']
  if (template === undefined || process.env['REDIS_URL'] === undefined) {
    throw new Error(
      'DATABASE_URL and REDIS_URL are not set. Run the tests through "pnpm test", or "node dev/with-services.ts vitest".',
    )
  }
  const url = new URL(template)
  const source = url.pathname.slice(1)
  const name = `${source}_test_${process.pid}_${Math.random().toString(36).slice(2, 10)}`
  await onMaintenanceDatabase(template, (client) => clone(client, name, source))
  url.pathname = `/${name}`
  return {
    databaseUrl: url.href,
    drop: () =>
      onMaintenanceDatabase(
        template,
        async (client) => void (await client.query(`drop database if exists "${name}" with (force)`)),
      ),
  }
}

/** Another clone of the same template may be under way: its session shows on the template for a moment. */
async function clone(client: Client, name: string, source: string): Promise<void> {
  for (let tries = 1; ; tries += 1) {
    try {
      await client.query(`create database "${name}" template "${source}"`)
      return
    } catch (error) {
      const busy = error instanceof Error && 'code' in error && error.code === '55006'
      if (!busy || tries >= 100) throw error
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }
}

async function onMaintenanceDatabase(template: string, work: (client: Client) => Promise<void>): Promise<void> {
  const url = new URL(template)
  url.pathname = '/postgres'
  const client = new Client({ connectionString: url.href })
  await client.connect()
  try {
    await work(client)
  } finally {
    await client.end()
  }
}
