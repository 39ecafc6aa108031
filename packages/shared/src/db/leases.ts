import { type Database, sql } from './database.ts'
import { PRESENCE_LOCK_HELD } from './workers.ts'

/**
 * Takes or renews a lease by Postgres's clock; that of a worker whose process is gone is free at once. False: somebody
 * else holds it.
 */
export async function takeLease(database: Database, name: string, holder: string, forMs: number): Promise<boolean> {
  const changed = await database.$executeRaw(sql`
    insert into "offshoot"."Lease" ("name", "holder", "until") values (${name}, ${holder}, clock_timestamp() + make_interval(secs => ${forMs / 1000}))
    on conflict ("name") do update set "holder" = excluded."holder", "until" = excluded."until"
      where "Lease"."holder" = excluded."holder" or "Lease"."until" < clock_timestamp()
        or exists (select 1 from "offshoot"."Worker" w where w."id" = "Lease"."holder" and not ${PRESENCE_LOCK_HELD})`)
  return changed === 1
}

/** Gives a lease up, so that the next one need not wait for its end. */
export async function dropLease(database: Database, name: string, holder: string): Promise<void> {
  await database.$executeRaw(sql`delete from "offshoot"."Lease" where "name" = ${name} and "holder" = ${holder}`)
}
