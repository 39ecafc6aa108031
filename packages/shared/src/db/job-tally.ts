// How many jobs there are, without counting them: the sum of what each insert and delete has left in JobTally (a trigger
// does, see prisma/migrations). It is exact at any instant, and as small as the last minute's work.
import { type Database, sql } from './database.ts'

export const JOBS_IN_ALL = sql`(select coalesce(sum("jobs"), 0)::float8 from "offshoot"."JobTally")`

/** Makes one row of those that are there. */
export async function addUpJobTally(database: Database): Promise<void> {
  await database.$executeRaw(sql`
    with taken as (delete from "offshoot"."JobTally" returning "jobs")
    insert into "offshoot"."JobTally" ("jobs") select sum("jobs") from taken having count(*) > 0`)
}
