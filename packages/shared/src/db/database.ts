// The connection to Postgres. Every session bounds how long it waits for a lock and how long it may sit in an open
// transaction, so that a frozen process cannot hold others up (docs/decisions/0006); and every statement bounds how long it
// waits for its answer, since TCP gives a connection that the network has dropped a quarter of an hour.
import { PrismaPg } from '@prisma/adapter-pg'
import { Pool } from 'pg'
import { type DirectSql, openDirectSql } from './direct-sql.ts'
import { Prisma, PrismaClient } from './generated/client.ts'

/** How long a statement waits for a lock, and a transaction may do nothing. */
export const SESSION_TIMEOUT_MS = 5_000
/** How long a caller waits for a free connection. */
const ACQUIRE_TIMEOUT_MS = 10_000
/** A transaction of ours never spans a model call, a hook or a Redis call, so this is ample. */
const TRANSACTION_TIMEOUT_MS = 15_000
/** A connection that owes an answer for this long is dead, whatever TCP thinks. No statement of ours takes as long. */
const ANSWER_LIMIT_MS = 30_000

export type Database = PrismaClient & { /** For the statements that every job makes. */ readonly direct: DirectSql }
/** What a statement can run on: the database itself, or an open transaction. */
export type Queryable = Prisma.TransactionClient

export const sql = Prisma.sql
export type Sql = Prisma.Sql

export interface DatabaseOptions {
  databaseUrl: string
  poolSize: number
  applicationName: string
  /** After so long without an answer a statement fails as with a broken connection, and the next one gets a new connection. */
  answerLimitMs?: number
}

export function openDatabase({ answerLimitMs = ANSWER_LIMIT_MS, ...options }: DatabaseOptions): Database {
  const pool = new Pool({
    connectionString: options.databaseUrl,
    max: options.poolSize,
    connectionTimeoutMillis: Math.min(ACQUIRE_TIMEOUT_MS, answerLimitMs),
    query_timeout: answerLimitMs,
    idleTimeoutMillis: 30_000,
    application_name: options.applicationName,
    lock_timeout: SESSION_TIMEOUT_MS,
    idle_in_transaction_session_timeout: SESSION_TIMEOUT_MS,
    keepAlive: true,
    // Statements of one transaction that do not wait for each other go in one message (db/direct-sql.ts).
    pipeline: true,
  })
  // A session that the server ends says so as an event, too. Between the pool's own listener and Prisma's nobody would
  // hear it, and an error event that nobody hears ends the process. The statement under way fails with it anyway.
  pool.on('connect', (client) => client.on('error', () => undefined))
  pool.on('error', () => undefined)
  const client = new PrismaClient({
    adapter: new PrismaPg(pool, { disposeExternalPool: true }),
    transactionOptions: { maxWait: ACQUIRE_TIMEOUT_MS, timeout: TRANSACTION_TIMEOUT_MS },
  })
  return Object.assign(client, { direct: openDirectSql(pool) })
}
