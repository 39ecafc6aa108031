// node dev/with-services.ts <command…>: runs a command with PostgreSQL (migrated) and Redis up, their URLs in DATABASE_URL
// and REDIS_URL, and ends as the command ends. Tests clone that database: create database … template ….
import { spawn, type ChildProcess } from 'node:child_process'
import { constants } from 'node:os'
import path from 'node:path'
import { deployMigrations } from '../prisma/deploy-migrations.ts'
import { generateClientIfStale } from '../prisma/generate-client.ts'
import { projectFolder } from '../prisma/prisma-cli.ts'
import { logLine, secondsSince } from './log-line.ts'
import { startServices, type Services } from './services.ts'
import { onStopRequest, type StopRequest } from './stop-request.ts'

const [file, ...args] = process.argv.slice(2)
if (file === undefined) {
  logLine('Usage: node dev/with-services.ts <command> [arguments]')
  process.exit(1)
}

const stopping = new AbortController()
let stoppedBy: StopRequest | undefined
let command: ChildProcess | undefined
onStopRequest(
  (request) => {
    stoppedBy = request
    if (command) passOn(command, request)
    else stopping.abort()
  },
  () => {
    command?.kill('SIGKILL')
    process.exit(exitCodeOf('SIGINT')) // the services end by themselves when we are gone
  },
)

let services: Services | undefined
try {
  await generateClientIfStale()
  services = await startServices({ log: logLine, signal: stopping.signal })
  const startedAt = performance.now()
  await deployMigrations(services.databaseUrl, stopping.signal)
  logLine(`the database is migrated (${secondsSince(startedAt)})`)
  stopping.signal.throwIfAborted()
  process.exitCode = await runCommand(file, services)
} catch (error) {
  if (!stopping.signal.aborted) logLine(error instanceof Error ? error.message : String(error))
  process.exitCode = stoppedBy === undefined ? 1 : exitCodeOf(stoppedBy)
}
await services?.stop()
process.exit()

function runCommand(program: string, { databaseUrl, redisUrl, adopt }: Services) {
  const searchPath = [path.join(projectFolder, 'node_modules', '.bin'), process.env['PATH']].join(path.delimiter)
  const env = { ...process.env, PATH: searchPath, DATABASE_URL: databaseUrl, REDIS_URL: redisUrl }
  const child = spawn(program, args, { stdio: 'inherit', env })
  command = child
  adopt(child)
  return new Promise<number>((resolve, reject) => {
    child.once('error', (cause) => reject(new Error(`Cannot run ${program}: ${cause.message}`, { cause })))
    child.once('close', (code, signal) => resolve(code ?? exitCodeOf(signal ?? 'SIGKILL')))
  })
}

/** A terminal tells every process of Ctrl-C itself, and being told twice means "at once" to many commands. */
function passOn(child: ChildProcess, request: StopRequest) {
  if (request === 'runner gone') child.kill('SIGTERM')
  else if (request !== 'SIGINT' || !process.stdin.isTTY) child.kill(request)
}

/** As a shell reports it. */
function exitCodeOf(request: StopRequest) {
  return 128 + constants.signals[request === 'runner gone' ? 'SIGTERM' : request]
}
