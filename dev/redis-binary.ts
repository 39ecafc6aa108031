import { execFile } from 'node:child_process'
import { accessSync, constants, readFileSync } from 'node:fs'
import { mkdir, mkdtemp, readdir, rename, rm, stat } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import type { Log } from './log-line.ts'

const run = promisify(execFile)
const DOWNLOAD_MS = 180_000

export type RedisBinary = { file: string; env: Record<string, string> }

export type RedisSearch = {
  searchPath: readonly string[]
  cacheFolder: string
  log: Log
  signal: AbortSignal
}

/**
 * A Redis server to run: `redis-server` or `valkey-server` on PATH; else, on Debian and Ubuntu, their package, downloaded
 * once into the cache and unpacked there, which needs no root and installs nothing.
 * @throws Error that says what a person can do, where neither serves.
 */
export async function findRedis(search: RedisSearch): Promise<RedisBinary> {
  const onPath = findOnPath(['redis-server', 'valkey-server'], search.searchPath)
  if (onPath) return { file: onPath, env: {} }
  if (!findOnPath(['apt-get'], search.searchPath) || !findOnPath(['dpkg-deb'], search.searchPath)) {
    throw new Error(`No Redis found. ${advice()}`)
  }
  const folder = path.join(search.cacheFolder, 'redis', systemName())
  if (!(await exists(folder))) await download(folder, search)
  return unpackedRedis(folder)
}

function findOnPath(names: readonly string[], searchPath: readonly string[]) {
  const files = names.flatMap((name) => searchPath.map((folder) => path.join(folder, name)))
  return files.find((file) => {
    try {
      accessSync(file, constants.X_OK)
      return true
    } catch {
      return false
    }
  })
}

/** "debian-12-x64": a package of one release or machine does not fit another that shares the home folder. */
function systemName() {
  const release = readFileSync('/etc/os-release', 'utf8')
  const field = (name: string) => new RegExp(`^${name}="?([\\w.-]+)`, 'm').exec(release)?.[1] ?? 'unknown'
  return `${field('ID')}-${field('VERSION_ID')}-${os.arch()}`
}

/** Appears whole in the cache or not at all, also when several processes do this at once. */
async function download(folder: string, search: RedisSearch) {
  const cache = path.dirname(folder)
  await mkdir(cache, { recursive: true })
  await removeAbandoned(cache)
  const work = await mkdtemp(path.join(cache, '.download-'))
  search.log('downloading Redis with apt-get (about 11 MB, once; installs nothing) …')
  try {
    const packages = path.join(work, 'archives')
    const unpacked = path.join(work, 'unpacked')
    for (const name of ['lists/partial', 'archives/partial', 'unpacked'])
      await mkdir(path.join(work, name), { recursive: true })
    await downloadPackages(work, search.signal)
    for (const file of (await readdir(packages)).filter((name) => name.endsWith('.deb'))) {
      await run('dpkg-deb', ['--extract', path.join(packages, file), unpacked], { signal: search.signal })
    }
    await checkRuns(await unpackedRedis(unpacked))
    await rename(unpacked, folder).catch(async (error: unknown) => {
      if (!(await exists(folder))) throw error // else another process was first
    })
  } catch (cause) {
    search.signal.throwIfAborted()
    const reason = cause instanceof Error ? cause.message.trim().split('\n').at(-1) : String(cause)
    throw new Error(`No Redis found, and apt-get could not download one (${reason}). ${advice()}`, { cause })
  } finally {
    await rm(work, { recursive: true, force: true })
  }
}

/** The package and those of its dependencies that this machine lacks. All of apt's own folders are private ones. */
async function downloadPackages(work: string, signal: AbortSignal) {
  const settings = {
    'Dir::State::lists': path.join(work, 'lists'),
    'Dir::Cache': work,
    'Dir::Cache::archives': path.join(work, 'archives'),
    'Debug::NoLocking': '1',
    'APT::Sandbox::User': '', // as root, apt would hand over to a user who may not enter the cache
    'Acquire::Languages': 'none',
  }
  const options = Object.entries(settings).map(([name, value]) => `-o${name}=${value}`)
  const limits = {
    signal,
    timeout: DOWNLOAD_MS,
    env: { ...process.env, LC_ALL: 'C', DEBIAN_FRONTEND: 'noninteractive' },
  }
  // A source that does not answer matters only if the package is not found.
  await run('apt-get', [...options, '--quiet', 'update'], limits).catch(() => signal.throwIfAborted())
  const install = ['--quiet', '--yes', '--no-install-recommends', '--download-only', 'install', 'redis-server']
  await run('apt-get', [...options, ...install], limits)
}

/** What a process left that was killed while it downloaded. */
async function removeAbandoned(cache: string) {
  for (const name of (await readdir(cache)).filter((entry) => entry.startsWith('.download-'))) {
    const file = path.join(cache, name)
    const { mtimeMs } = await stat(file).catch(() => ({ mtimeMs: Date.now() }))
    if (Date.now() - mtimeMs > 2 * DOWNLOAD_MS) await rm(file, { recursive: true, force: true })
  }
}

async function unpackedRedis(folder: string): Promise<RedisBinary> {
  const libraries = path.join(folder, 'usr', 'lib')
  const machines = (await readdir(libraries).catch(() => [])).filter((name) => name.includes('-linux-'))
  const libraryPath = machines.map((name) => path.join(libraries, name)).join(':')
  return { file: path.join(folder, 'usr', 'bin', 'redis-server'), env: { LD_LIBRARY_PATH: libraryPath } }
}

async function checkRuns(redis: RedisBinary) {
  await run(redis.file, ['--version'], { env: { ...process.env, ...redis.env } })
}

function advice() {
  return (
    'Set REDIS_URL to one that runs, or get one: on macOS `brew install redis`; on Debian or Ubuntu ' +
    '`apt-get install redis-server`; on Windows use WSL or Docker; with Docker `docker run -p 6379:6379 redis:7`, and ' +
    'set REDIS_URL=redis://127.0.0.1:6379.'
  )
}

async function exists(file: string) {
  return (await stat(file).catch(() => undefined)) !== undefined
}
