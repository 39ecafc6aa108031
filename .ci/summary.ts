// node .ci/summary.ts <report…>: counts the tests in vitest's JSON reports and ends with "N passed, N failed". A file that
// could not be run counts as one failed test, and so does a report that is missing. Exit code 0 only when something
// passed and nothing failed.
import { readFileSync } from 'node:fs'
import { z } from 'zod'

const reportSchema = z.object({
  numPassedTests: z.number(),
  numFailedTests: z.number(),
  testResults: z.array(z.object({ status: z.string(), assertionResults: z.array(z.unknown()) })),
})

let passed = 0
let failed = 0
for (const file of process.argv.slice(2)) {
  const report = readReport(file)
  passed += report?.numPassedTests ?? 0
  failed += report === undefined ? 1 : report.numFailedTests + filesNotRun(report)
}
process.stdout.write(`${passed} passed, ${failed} failed\n`)
process.exitCode = failed === 0 && passed > 0 ? 0 : 1

function filesNotRun({ testResults }: z.infer<typeof reportSchema>): number {
  return testResults.filter(({ status, assertionResults }) => status === 'failed' && assertionResults.length === 0)
    .length
}

function readReport(file: string): z.infer<typeof reportSchema> | undefined {
  try {
    return reportSchema.parse(JSON.parse(readFileSync(file, 'utf8')))
  } catch (error) {
    process.stderr.write(
      `There is no test report to count: ${error instanceof Error ? error.message : String(error)}\n`,
    )
    return undefined
  }
}
