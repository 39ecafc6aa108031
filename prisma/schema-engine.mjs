#!/usr/bin/env node
// Prisma's CLI starts a `schema-engine` executable and talks JSON-RPC with it, one JSON object a line on stdio. The
// native executable is a download that a closed network refuses. This script answers the same protocol with Prisma's own
// engine compiled to WebAssembly (npm: @prisma/schema-engine-wasm) over @prisma/adapter-pg, so that the official CLI works
// from npm packages alone. Use: PRISMA_SCHEMA_ENGINE_BINARY=<absolute path of this file> prisma migrate deploy
//
// - Prisma's own table, _prisma_migrations, stands in our Postgres schema, beside the tables it speaks of: a host's
//   database may have a Prisma history of its own in `public`.
// - A diff between two schema files needs no database.
// - Reading a live database's structure (migrate dev, db pull) does not work through this engine.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import path from 'node:path'
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'
import { PrismaPg } from '@prisma/adapter-pg'
import { bindMigrationAwareSqlAdapterFactory, ColumnTypeEnum } from '@prisma/driver-adapter-utils'
import * as wasm from '@prisma/schema-engine-wasm/schema_engine_bg'

const POSTGRES_SCHEMA = 'offshoot'

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  strict: false,
  options: { datamodels: { type: 'string', multiple: true }, datasource: { type: 'string' } },
})
const databaseUrl = options.datasource ? JSON.parse(options.datasource).url : process.env.DATABASE_URL
const datamodels = (options.datamodels ?? []).map((file) => [file, readFileSync(file, 'utf8')])

await loadEngine()
if (positionals[0] === 'cli') await runCommand(positionals[1])
else await answerRequests()

async function loadEngine() {
  const folder = path.dirname(createRequire(import.meta.url).resolve('@prisma/schema-engine-wasm'))
  const { instance } = await WebAssembly.instantiate(readFileSync(path.join(folder, 'schema_engine_bg.wasm')), {
    './schema_engine_bg.js': wasm,
  })
  wasm.__wbg_set_wasm(instance.exports)
  instance.exports.__wbindgen_start?.()
}

function openEngine(adapterFactory) {
  const known = datamodels.length > 0 ? datamodels : undefined
  return wasm.SchemaEngine.new({ datamodels: known }, () => {}, bindMigrationAwareSqlAdapterFactory(adapterFactory))
}

/** The database. The engine asks for its tables in `schema`, and writes them unqualified: hence the search path too. */
function openDatabaseEngine() {
  const url = new URL(databaseUrl)
  const sessionOptions = [url.searchParams.get('options'), `-c search_path=${POSTGRES_SCHEMA}`].filter(Boolean)
  url.searchParams.set('options', sessionOptions.join(' '))
  const factory = new PrismaPg({ connectionString: url.href }, { schema: POSTGRES_SCHEMA })
  return openEngine({
    provider: factory.provider,
    adapterName: factory.adapterName,
    connect: async () => inOneQuery(await factory.connect()),
    connectToShadowDb: async () => inOneQuery(await factory.connectToShadowDb()),
  })
}

/**
 * A script goes to Postgres as one query, which is one transaction, as the native engine does it: a migration that fails
 * leaves nothing behind. The adapter's own way is one query for whatever stands between two semicolons, which also cuts
 * the body of a function.
 */
function inOneQuery(adapter) {
  adapter.executeScript = async (script) => {
    try {
      await adapter.client.query(script)
    } catch (error) {
      adapter.onError(error)
    }
  }
  return adapter
}

/**
 * No database: an adapter that answers the engine's one opening question, which schema it is in and which PostgreSQL this
 * is. It says `public`, so that the SQL of a diff names our schema everywhere.
 */
function openOfflineEngine() {
  const greeting = {
    columnNames: ['exists', 'version', 'numeric_version'],
    columnTypes: [ColumnTypeEnum.Boolean, ColumnTypeEnum.Text, ColumnTypeEnum.Int32],
    rows: [[true, 'PostgreSQL 15.0', 150_000]],
  }
  const identity = { provider: 'postgres', adapterName: 'offline' }
  const adapter = {
    ...identity,
    getConnectionInfo: () => ({ schemaName: 'public', supportsRelationJoins: true }),
    queryRaw: () => Promise.resolve(greeting),
    executeRaw: refuse,
    executeScript: refuse,
    startTransaction: refuse,
    dispose: () => Promise.resolve(),
  }
  const connect = () => Promise.resolve(adapter)
  return openEngine({ ...identity, connect, connectToShadowDb: connect })
}

function refuse() {
  return Promise.reject(new Error('This command needs no database, and has none.'))
}

/**
 * `schema-engine cli <command>`: exit 0 when it worked, else 1 and an error line in the engine's log format. The CLI skips
 * the first line.
 */
async function runCommand(command) {
  try {
    if (command !== 'can-connect-to-database') {
      throw new Error(`"${command}" is not supported. Does the database of DATABASE_URL exist?`)
    }
    const engine = await openDatabaseEngine()
    await engine.ensureConnectionValidity({ datasource: { tag: 'ConnectionString', url: databaseUrl } })
    process.exit(0)
  } catch (error) {
    const fields = { message: messageOf(error), error_code: error?.code ?? 'P1001' }
    process.stderr.write(`\n${JSON.stringify({ level: 'ERROR', target: 'schema_engine::logger', fields })}\n`)
    process.exit(1)
  }
}

async function answerRequests() {
  const engines = {}
  for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line)
    if (request.method === undefined) continue // the CLI's answer to a `print` of ours
    try {
      const result = await answer(engines, request)
      if (request.method === 'diff' && result?.stdout) {
        send({ id: 1_000_000 + request.id, method: 'print', params: { content: result.stdout } })
      }
      send({ id: request.id, result: result ?? null })
    } catch (error) {
      const data = { is_panic: false, message: messageOf(error), meta: null, error_code: error?.code ?? null }
      send({ id: request.id, error: { code: 4466, message: data.message, data } })
    }
  }
  process.exit(0)
}

async function answer(engines, { method, params }) {
  if (method === 'diff' && isFile(params.from) && isFile(params.to)) {
    engines.offline ??= await openOfflineEngine()
    return engines.offline.diff(params)
  }
  engines.database ??= await openDatabaseEngine()
  return engines.database[method === 'getDatabaseVersion' ? 'version' : method](params)
}

function isFile(target) {
  return target.tag === 'empty' || target.tag === 'schemaDatamodel'
}

function send(message) {
  process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`)
}

function messageOf(error) {
  return String(error?.message ?? error)
}
