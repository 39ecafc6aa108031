// A database on the server that `DATABASE_URL` names, in which nothing is yet.
import { Client, type QueryResultRow } from 'pg'

export interface EmptyDatabase {
  databaseUrl: string
  query<Row extends QueryResultRow>(text: string): Promise<Row[]>
  drop(): Promise<void>
}

export async function createEmptyDatabase(): Promise<EmptyDatabase> {
  const serverUrl = process.env['DATABASE_URL']
  if (serverUrl === undefined) throw new Error('DATABASE_URL is not set. Run the tests through "pnpm test".')
  const name = `empty_test_${process.pid}_${Math.random().toString(36).slice(2, 10)}`
  const urlOf = (database: string) => Object.assign(new URL(serverUrl), { pathname: `/${database}` }).href
  const databaseUrl = urlOf(name)
  await queryOn(urlOf('postgres'), `create database "${name}" template template0`)
  return {
    databaseUrl,
    query: (text) => queryOn(databaseUrl, text),
    drop: async () => void (await queryOn(urlOf('postgres'), `drop database if exists "${name}" with (force)`)),
  }
}

async function queryOn<Row extends QueryResultRow>(databaseUrl: string, text: string): Promise<Row[]> {
  const client = new Client({ connectionString: databaseUrl })
  await client.connect()
  try {
    return (await client.query<Row>(text)).rows
  } finally {
    await client.end()
  }
}
