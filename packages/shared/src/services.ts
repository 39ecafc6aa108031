// Whether the services that everything stands on answer this process: what readiness and metrics say of them.
import { sql } from './db/database.ts'
import type { Runtime } from './runtime.ts'
import { withLimit } from './with-limit.ts'

/** A service that does not answer within this time counts as away. */
export const SERVICE_LIMIT_MS = 2_000

export interface Services {
  postgres: boolean
  redis: boolean
}

export async function askServices({ database, signals }: Pick<Runtime, 'database' | 'signals'>): Promise<Services> {
  const postgres = await withLimit(database.$queryRaw(sql`select 1`), SERVICE_LIMIT_MS).then(
    () => true,
    () => false,
  )
  return { postgres, redis: signals.pulse.isOk() }
}
