// pnpm bench [workload…] [--rounds N] [--json FILE] [--svg FOLDER] [--quick]: measures Offshoot against its baselines, in
// turn, in one run. Progress goes to stderr, the tables to stdout.
import { mkdir, writeFile } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { Argument, Command, InvalidArgumentError } from 'commander'
import { logLine, secondsSince } from '../../dev/log-line.ts'
import { onStopRequest } from '../../dev/stop-request.ts'
import type { Chart } from './chart.ts'
import { drawRounds } from './draw-rounds.ts'
import { tableOf } from './report.ts'
import { type Figures, summarize, type Summary, type Workload } from './workload.ts'
import { WORKLOADS } from './workloads.ts'

interface Result {
  figures: Record<string, Summary>
  charts: readonly Chart[]
}

/** For what a workload has started to end. */
const CLOSE_LIMIT_MS = 30_000
const STOPPED_EXIT_CODE = 130

const names = WORKLOADS.map(({ name }) => name)
const program = new Command('bench')
  .description('Measures Offshoot against bare streamText and raw BullMQ.')
  .addArgument(new Argument('[workloads...]', 'which ones; all when none is named').choices(names))
  .option('--rounds <count>', 'how often each workload runs', wholeNumber, 5)
  .option('--json <file>', 'write every figure of every round to a file')
  .option('--svg <folder>', 'where to draw each workload as SVG', '.offshoot/bench')
  .option('--quick', 'small sizes, to try a workload out: its figures say little', false)
  .parse()

const options: { rounds: number; json?: string; svg: string; quick: boolean } = program.opts()
const wanted = program.args.length === 0 ? names : program.args

const stopping = new AbortController()
const stopped = new Promise<never>((_, reject) => {
  stopping.signal.addEventListener('abort', () => reject(new Error('stopped')))
})
stopped.catch(() => undefined) // whoever waits hears of it
onStopRequest(
  () => {
    logLine('stopping …')
    stopping.abort()
  },
  () => process.exit(STOPPED_EXIT_CODE),
)

const results = new Map<string, Result>()
for (const workload of WORKLOADS.filter(({ name }) => wanted.includes(name))) {
  try {
    const result = await runWorkload(workload)
    results.set(workload.name, result)
    process.stdout.write(tableOf(workload.name, result.figures))
  } catch (error) {
    if (stopping.signal.aborted) break
    process.exitCode = 1
    logLine(`${workload.name} failed: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`)
  }
}
if (stopping.signal.aborted) process.exit(STOPPED_EXIT_CODE)
if (options.json !== undefined) await writeJson(options.json)
await drawAll(options.svg)
process.exit()

async function runWorkload({ name, about, warmUps, open }: Workload): Promise<Result> {
  logLine(`${name}: ${about}${options.quick ? ' (now: small sizes)' : ''}`)
  const workload = await open({ quick: options.quick, log: logDetail, signal: stopping.signal })
  const rounds: Figures[] = []
  try {
    for (let round = 1 - warmUps; round <= options.rounds; round += 1) {
      const startedAt = performance.now()
      const figures = await Promise.race([workload.round(), stopped])
      logDetail(`${round <= 0 ? 'warm-up' : `round ${round} of ${options.rounds}`} (${secondsSince(startedAt)})`)
      if (round > 0) rounds.push(figures)
    }
  } finally {
    await Promise.race([workload.close(), new Promise((resolve) => setTimeout(resolve, CLOSE_LIMIT_MS).unref())])
  }
  return { figures: summarize(rounds), charts: workload.charts }
}

function logDetail(line: string): void {
  logLine(`  ${line}`)
}

async function writeJson(file: string): Promise<void> {
  await mkdir(path.dirname(path.resolve(file)), { recursive: true })
  const measured = Object.fromEntries([...results].map(([name, { figures }]) => [name, figures]))
  const { rounds, quick } = options
  const on = { node: process.version, platform: os.platform(), cpus: os.cpus().length, cpu: os.cpus()[0]?.model }
  await writeFile(file, `${JSON.stringify({ on, rounds, quick, results: measured }, null, 2)}\n`)
  logLine(`every figure stands in ${file}`)
}

async function drawAll(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true })
  for (const [name, { figures, charts }] of results)
    await writeFile(path.join(folder, `${name}.svg`), drawRounds(name, figures, charts))
  logLine(`drawn into ${folder}`)
}

function wholeNumber(text: string): number {
  const count = Number(text)
  if (!Number.isInteger(count) || count < 1) throw new InvalidArgumentError('It must be a whole number of at least 1.')
  return count
}
