import { InvalidArgumentError, program } from 'commander'
import { logLine } from './log-line.ts'
import { startStack, type Stack } from './stack.ts'
import { onStopRequest } from './stop-request.ts'

type Options = { workers: number; data?: string; json?: true; port?: number }

program
  .name('pnpm start')
  .description(
    'Runs Offshoot on this machine until Ctrl-C: API, workers and, where none are named, its services and a model.',
  )
  .option('--workers <number>', 'worker processes', wholeNumber(100), 2)
  .option('--data <folder>', 'keep PostgreSQL and Redis data there for the next time')
  .option(
    '--port <number>',
    "the API's port; 0 takes a free one (default: API_PORT, else 3000 or a free one)",
    wholeNumber(65_535),
  )
  .option('--json', 'print one line of JSON on stdout when ready, and nothing else')
  .action(run)

// pnpm passes on the `--` of `pnpm start -- --json`.
await program.parseAsync(process.argv.filter((argument) => argument !== '--'))

async function run(options: Options) {
  if (options.workers === 0) logLine('without workers the API accepts jobs and none of them runs')
  const stopping = new AbortController()
  let stack: Stack | undefined
  const stopAsked = new Promise<void>((resolve) => {
    const stop = () => {
      logLine('stopping: running jobs may end their step first, for up to half a minute (Ctrl-C again ends at once) …')
      stopping.abort()
      resolve()
    }
    onStopRequest(stop, () => {
      stack?.kill()
      process.exit(1) // the services end by themselves when we are gone
    })
  })
  try {
    stack = await startStack({
      workers: options.workers,
      dataDir: options.data,
      port: options.port,
      log: logLine,
      quiet: true,
      signal: stopping.signal,
    })
    process.stdout.write(options.json ? `${JSON.stringify(answer(stack))}\n` : summary(stack))
    const apiEnd = await Promise.race([stack.apiEnded, stopAsked])
    if (apiEnd !== undefined) logLine(`the API has ended (${apiEnd}): stopping the rest`)
    await stack.stop()
    process.exit(apiEnd === undefined ? 0 : 1)
  } catch (error) {
    if (stopping.signal.aborted) process.exit(0)
    logLine(error instanceof Error ? error.message : String(error))
    process.exit(1)
  }
}

function answer(stack: Stack) {
  const { apiUrl: api, redisUrl: redis, databaseUrl: database, apiKeys, pids } = stack
  return { ready: true, api, redis, database, apiKeys, pids }
}

function summary({ apiUrl, redisUrl, databaseUrl, modelEnv, apiKeys, pids }: Stack) {
  const hostEnv = Object.entries({ DATABASE_URL: databaseUrl, REDIS_URL: redisUrl, ...modelEnv })
  const rows = {
    API: apiUrl,
    'Bull Board': `${new URL('/admin/queues', apiUrl).href} (user admin, password: admin's key, unless BULL_BOARD_USER is set)`,
    Documents: new URL('/docs', apiUrl).href,
    'API keys': Object.entries(apiKeys)
      .map(([user, key]) => `${user} ${key}`)
      .join('\n              '),
    'For a host': `export ${hostEnv.map(([name, value]) => `${name}='${value}'`).join(' \\\n                     ')}`,
    Processes: `API ${pids.api}, workers ${pids.workers.join(', ')}`,
  }
  const lines = Object.entries(rows).map(([name, value]) => `  ${name.padEnd(12)}${value}`)
  return `\nOffshoot is up. Ctrl-C ends it.\n${lines.join('\n')}\n\n`
}

function wholeNumber(maximum: number) {
  return (text: string) => {
    const number = Number(text)
    if (/^\d+$/.test(text) && number <= maximum) return number
    throw new InvalidArgumentError(`It must be a whole number from 0 to ${maximum}.`)
  }
}
