// Statements on pg itself, for the few that every job makes: prepared once a session, and without the client of Prisma
// around them, which costs several times what the statement does. Everything else goes through Prisma.
import type { Socket } from 'node:net'
import { Pool, type PoolClient, type QueryResult, TypeOverrides } from 'pg'
import type { Sql } from './database.ts'
import { isStalePlan } from './database-errors.ts'

/** What a raw statement can run on: Prisma's client or transaction, or pg itself. */
export interface Statements {
  $queryRaw<T>(query: Sql): Promise<T>
  /** Answers how many rows were changed. */
  $executeRaw(query: Sql): Promise<number>
}

export interface DirectSql extends Statements {
  /**
   * A transaction of two statements in two round trips: `lock` locks and answers what it holds, `write` looks and writes.
   * Lock first, look second (docs/decisions/0004): the second statement sees all that was committed before the locks were
   * had. Without a second statement nothing is written.
   */
  // oxlint-disable-next-line typescript/no-unnecessary-type-parameters -- the statement’s text says what its rows are
  lockThenWrite<Locked, Written>(
    lock: Sql,
    write: (locked: Locked[]) => Sql | undefined,
  ): Promise<{ locked: Locked[]; written: Written[] }>
}

const INT8 = 20
const types = new TypeOverrides()
types.setTypeParser(INT8, (text: string) => BigInt(text))

export function openDirectSql(pool: Pool): DirectSql {
  return {
    ...statementsOn(pool),
    // oxlint-disable-next-line typescript/no-unnecessary-type-parameters -- the statement’s text says what its rows are
    async lockThenWrite<Locked, Written>(
      lock: Sql,
      write: (locked: Locked[]) => Sql | undefined,
    ): Promise<{ locked: Locked[]; written: Written[] }> {
      const client = await pool.connect()
      let broken: Error | undefined
      try {
        const statements = statementsOn(client)
        // Sent together: a statement that fails makes of the commit a rollback.
        const [, locked] = await inOnePiece(client, () => [client.query('begin'), statements.$queryRaw<Locked[]>(lock)])
        const second = write(locked)
        const [written] = await inOnePiece(client, () => [
          second === undefined ? [] : statements.$queryRaw<Written[]>(second),
          client.query('commit'),
        ])
        return { locked, written }
      } catch (error) {
        await client.query('rollback').catch((failed: Error) => (broken = failed))
        throw error
      } finally {
        client.release(broken)
      }
    },
  }
}

/** Sends several statements as one piece of the network's. */
function inOnePiece<const Sent extends readonly unknown[]>(
  client: PoolClient,
  send: () => Sent,
): Promise<{ -readonly [At in keyof Sent]: Awaited<Sent[At]> }> {
  // The types of pg do not tell of its connection.
  const { stream } = (client as PoolClient & { connection: { stream: Socket } }).connection
  stream.cork()
  try {
    return Promise.all(send())
  } finally {
    stream.uncork()
  }
}

function statementsOn(db: Pool | PoolClient): Statements {
  async function run(query: Sql): Promise<QueryResult> {
    const name = nameOf(query.text)
    try {
      return await db.query({ name, text: query.text, values: query.values, types })
    } catch (error) {
      if (!isStalePlan(error)) throw error
      if (names.get(query.text) === name) names.delete(query.text)
      // A transaction is over with it.
      if (!(db instanceof Pool)) throw error
      return db.query({ name: nameOf(query.text), text: query.text, values: query.values, types })
    }
  }
  return {
    // The statement's text says what its rows are.
    $queryRaw: async <T>(query: Sql) => (await run(query)).rows as T,
    $executeRaw: async (query) => (await run(query)).rowCount ?? 0,
  }
}

/**
 * One name for one text, so that a session prepares it once. There are as many texts as statements in our code. One that
 * answers whole rows gets another name when a migration has given them columns.
 */
const names = new Map<string, string>()
let named = 0

function nameOf(text: string): string {
  const known = names.get(text)
  if (known !== undefined) return known
  const name = `offshoot_${named}`
  named += 1
  names.set(text, name)
  return name
}
