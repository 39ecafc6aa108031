// A long history: copies of a job that has really run, with all that it has left in Postgres, under ids, users and instants
// of their own. The columns are read from the database, so that this holds when a table gets another one.
import { Client } from 'pg'
import { waitUntil } from '@offshoot/testing/wait-until'

export interface History {
  databaseUrl: string
  /** The job to copy. It has ended, and everybody has been told. */
  jobId: string
  /** How many copies. */
  count: number
  log(line: string): void
  /** Gives up. */
  signal: AbortSignal
}

/** In the order in which foreign keys allow it. */
const TABLES = ['AgentTree', 'Convo', 'AiMessage', 'AgentJob', 'AgentStep', 'AgentEvent', 'Outbox']
const AT_A_TIME = 20_000
/** The history is this long: less than the day after which told outbox entries go. */
const HISTORY_SECONDS = 20 * 3_600
/** As many as those who spawn now (bench-stage.ts). */
const USERS = 100

/** UUIDv7s older than any that is made now, in the order of `n`. */
const idOf = (kind: string) => `'01900000-0000-7000-${kind}-' || lpad(to_hex(n), 12, '0')`
const JOB = idOf('8000')
const CONVO = idOf('9000')
const MESSAGE = idOf('a000')
const USER = `'user-' || n % ${USERS}`

/** What a column of a copy holds, where it is not what the original has. */
const OWN_VALUES: Record<string, string> = {
  jobId: JOB,
  rootJobId: JOB,
  convoId: CONVO,
  parentConvoId: `'chat-' || n % ${USERS}`,
  ownerId: USER,
  triggeredById: USER,
  triggeredByIds: `array[${USER}]`,
  'AgentJob.id': JOB,
  'Convo.id': CONVO,
  // The final message has the job's id.
  'AiMessage.id': `case when t."id" = t."jobId" then ${JOB} else ${MESSAGE} end`,
  'Outbox.key': `replace(t."key", t."jobId", ${JOB})`,
}

export async function addHistory({ databaseUrl, jobId, count, log, signal }: History): Promise<void> {
  const client = new Client({ connectionString: databaseUrl })
  await client.connect()
  try {
    await client.query(`set synchronous_commit = off; set gin_pending_list_limit = '64MB'`)
    await waitUntil(async () => (await untold(client, jobId)) === 0, { what: 'the end of all outbox entries' })
    const copies: string[] = []
    for (const table of TABLES) copies.push(await copyStatement(client, table, count))
    for (let from = 1; from <= count; from += AT_A_TIME) {
      const to = Math.min(from + AT_A_TIME - 1, count)
      for (const copy of copies) {
        signal.throwIfAborted()
        await client.query(copy, [from, to, jobId])
      }
      if (to % (AT_A_TIME * 10) === 0) log(`${to} of ${count} finished jobs are in Postgres`)
    }
    await client.query('vacuum (analyze)')
    await client.query('checkpoint').catch(() => undefined) // not everybody may
  } finally {
    await client.end()
  }
}

async function untold(client: Client, jobId: string): Promise<number> {
  const { rows } = await client.query('select 1 from "offshoot"."Outbox" where "jobId" = $1 and "doneAt" is null', [
    jobId,
  ])
  return rows.length
}

/** Takes the first and the last number, and the original's id. */
async function copyStatement(client: Client, table: string, count: number): Promise<string> {
  const { rows: columns } = await client.query<{ name: string; type: string }>(
    `select column_name as name, data_type as type from information_schema.columns
     where table_schema = 'offshoot' and table_name = $1 and coalesce(column_default, '') not like 'nextval%'`,
    [table],
  )
  const values = columns.map(({ name, type }) => {
    const own = OWN_VALUES[`${table}.${name}`] ?? OWN_VALUES[name]
    if (own !== undefined) return own
    const earlier = `make_interval(secs => ${HISTORY_SECONDS} * (1 - n / ${count}.0))`
    return type.startsWith('timestamp') ? `t."${name}" - ${earlier}` : `t."${name}"`
  })
  const names = columns.map(({ name }) => `"${name}"`)
  return `insert into "offshoot"."${table}" (${names.join(', ')}) select ${values.join(', ')}
    from generate_series($1::int, $2::int) n cross join (select * from "offshoot"."${table}" where ${ofJob(table)}) t`
}

/** The original's rows, whose id is the third value. */
function ofJob(table: string): string {
  switch (table) {
    case 'AgentTree':
      return '"rootJobId" = $3'
    case 'AgentJob':
      return '"id" = $3'
    case 'Convo':
      return '"id" = (select "convoId" from "offshoot"."AgentJob" where "id" = $3)'
    case 'AiMessage':
      return '"convoId" = (select "convoId" from "offshoot"."AgentJob" where "id" = $3)'
    default:
      return '"jobId" = $3'
  }
}
