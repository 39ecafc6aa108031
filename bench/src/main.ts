// pnpm bench [workload…] [--rounds N] [--json FILE] [--svg FOLDER]: measures Offshoot against its baselines, in turn, in one run.
import { mkdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { Argument, Command, InvalidArgumentError } from 'commander'
import { drawRounds } from './draw-rounds.ts'
import { printWorkload } from './report.ts'
import { type Figures, median, type Workload } from './workload.ts'
import { WORKLOADS } from './workloads.ts'

/** The medians and the single rounds of each figure, by workload. */
export type Results = Record<string, Record<string, { median: number; rounds: number[] }>>

const names = WORKLOADS.map(({ name }) => name)
const program = new Command('bench')
  .description('Measures Offshoot against bare streamText and raw BullMQ.')
  .addArgument(new Argument('[workloads...]', 'which ones; all when none is named').choices(names))
  .option('--rounds <count>', 'how often each workload runs', wholeNumber, 5)
  .option('--json <file>', 'write every figure of every round to a file')
  .option('--svg <folder>', 'draw each workload as SVG into a folder')
  .parse()

const options: { rounds: number; json?: string; svg?: string } = program.opts()
const wanted = program.args.length === 0 ? names : program.args
const log = (line: string) => void process.stderr.write(`${line}\n`)

const results: Results = {}
for (const workload of WORKLOADS.filter(({ name }) => wanted.includes(name))) {
  const rounds = await runWorkload(workload)
  results[workload.name] = summarize(rounds)
  printWorkload(workload, results[workload.name] ?? {})
}
if (options.json !== undefined) await writeJson(options.json)
if (options.svg !== undefined) await drawAll(options.svg)
process.exit()

async function runWorkload(workload: Workload): Promise<Figures[]> {
  log(`${workload.name}: ${workload.about}`)
  const open = await workload.open()
  const rounds: Figures[] = []
  try {
    for (let warmUp = 1; warmUp <= workload.warmUps; warmUp += 1) {
      log(`  warm-up ${warmUp} of ${workload.warmUps} …`)
      await open.round()
    }
    for (let round = 1; round <= options.rounds; round += 1) {
      const startedAt = performance.now()
      rounds.push(await open.round())
      log(`  round ${round} of ${options.rounds} (${((performance.now() - startedAt) / 1_000).toFixed(1)} s)`)
    }
  } finally {
    await open.close()
  }
  return rounds
}

function summarize(rounds: readonly Figures[]) {
  const figures = Object.keys(rounds[0] ?? {})
  return Object.fromEntries(
    figures.map((figure) => {
      const values = rounds.map((round) => round[figure] ?? NaN)
      return [figure, { median: median(values), rounds: values }]
    }),
  )
}

async function writeJson(file: string): Promise<void> {
  await mkdir(path.dirname(path.resolve(file)), { recursive: true })
  await writeFile(file, `${JSON.stringify({ node: process.version, rounds: options.rounds, results }, null, 2)}\n`)
  log(`every figure stands in ${file}`)
}

async function drawAll(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true })
  for (const [name, figures] of Object.entries(results))
    await writeFile(path.join(folder, `${name}.svg`), drawRounds(name, figures))
  log(`drawn into ${folder}`)
}

function wholeNumber(text: string): number {
  const count = Number(text)
  if (!Number.isInteger(count) || count < 1) throw new InvalidArgumentError('It must be a whole number of at least 1.')
  return count
}
