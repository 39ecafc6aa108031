import { spawn } from 'node:child_process'
import { readdir } from 'node:fs/promises'
import { createRequire } from 'node:module'
import path from 'node:path'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'

export const projectFolder = fileURLToPath(new URL('..', import.meta.url))
export const schemaFile = path.join(projectFolder, 'prisma', 'schema.prisma')
export const migrationsFolder = path.join(projectFolder, 'prisma', 'migrations')

/** The migrations of this version, oldest first. */
export async function migrationNames() {
  return (await readdir(migrationsFolder)).filter((entry) => /^\d{14}_/.test(entry)).toSorted()
}

export type PrismaOptions = {
  /** Which database; by default DATABASE_URL's. */
  databaseUrl?: string
  /** Ends the CLI. */
  signal?: AbortSignal
  /** Exit codes that are no failure; by default 0 alone. */
  okCodes?: readonly number[]
}

/**
 * Runs the official Prisma CLI on our own schema engine and gives its exit code and standard output.
 * @throws Error with all that the CLI wrote, when it ends with another exit code than `okCodes`.
 */
export async function runPrisma(args: readonly string[], options: PrismaOptions = {}) {
  const cli = spawn(process.execPath, [cliFile(), ...args], {
    cwd: projectFolder,
    env: { ...process.env, ...environment(options.databaseUrl) },
    stdio: ['ignore', 'pipe', 'pipe'],
    ...(options.signal && { signal: options.signal }),
  })
  const ended = new Promise<number | null>((resolve, reject) => cli.once('error', reject).once('close', resolve))
  const [code, stdout, stderr] = await Promise.all([ended, text(cli.stdout), text(cli.stderr)])
  if (code === null || !(options.okCodes ?? [0]).includes(code)) {
    throw new Error(`prisma ${args.join(' ')} failed.\n${withoutNoise(`${stdout}\n${stderr}`)}`)
  }
  return { code, stdout }
}

function cliFile() {
  return path.join(path.dirname(createRequire(import.meta.url).resolve('prisma/package.json')), 'build', 'index.js')
}

function environment(databaseUrl: string | undefined) {
  return {
    ...(databaseUrl !== undefined && { DATABASE_URL: databaseUrl }),
    // The engine's first line asks for `node`: it gets this one.
    PATH: [path.dirname(process.execPath), process.env['PATH']].join(path.delimiter),
    PRISMA_SCHEMA_ENGINE_BINARY: path.join(projectFolder, 'prisma', 'schema-engine.mjs'),
    PRISMA_HIDE_UPDATE_MESSAGE: '1',
    CHECKPOINT_DISABLE: '1', // no usage data to Prisma
  }
}

function withoutNoise(output: string) {
  const noise = /^(Loaded Prisma config|Prisma schema loaded)/
  return output
    .split('\n')
    .filter((line) => line.trim() !== '' && !noise.test(line))
    .join('\n')
}
