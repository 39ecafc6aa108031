// node .ci/summary.ts <report…>: counts the tests in vitest's JSON reports and ends with "N passed, N failed". A file that
// could not be run counts as one failed test, and so do a report that is missing and a suite that took longer than it may.
// Exit code 0 only when something passed and nothing failed.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { z } from 'zod'

const reportSchema = z.object({
  numPassedTests: z.number(),
  numFailedTests: z.number(),
  /** Milliseconds since 1970, as `endTime`. */
  startTime: z.number(),
  testResults: z.array(z.object({ status: z.string(), endTime: z.number(), assertionResults: z.array(z.unknown()) })),
})
type Report = z.infer<typeof reportSchema>

/** How long a whole suite may take, by the name of its report. */
const LIMITS_MINUTES: Readonly<Record<string, number>> = { 'faults-report.json': 10 }

let passed = 0
let failed = 0
for (const file of process.argv.slice(2)) {
  const report = readReport(file)
  passed += report?.numPassedTests ?? 0
  failed += report === undefined ? 1 : report.numFailedTests + filesNotRun(report) + (isTooSlow(file, report) ? 1 : 0)
}
process.stdout.write(`${passed} passed, ${failed} failed\n`)
process.exitCode = failed === 0 && passed > 0 ? 0 : 1

function isTooSlow(file: string, { startTime, testResults }: Report): boolean {
  const limit = LIMITS_MINUTES[path.basename(file)] ?? Infinity
  const minutes = (Math.max(startTime, ...testResults.map(({ endTime }) => endTime)) - startTime) / 60_000
  if (minutes <= limit) return false
  process.stderr.write(`The suite of ${file} took ${minutes.toFixed(1)} minutes. It may take ${limit}.\n`)
  return true
}

function filesNotRun({ testResults }: Report): number {
  return testResults.filter(({ status, assertionResults }) => status === 'failed' && assertionResults.length === 0)
    .length
}

function readReport(file: string): Report | undefined {
  try {
    return reportSchema.parse(JSON.parse(readFileSync(file, 'utf8')))
  } catch (error) {
    process.stderr.write(
      `There is no test report to count: ${error instanceof Error ? error.message : String(error)}\n`,
    )
    return undefined
  }
}
