// node .ci/summary.ts <report>: counts the tests in vitest's JSON report and ends with "N passed, N failed". A file that
// could not be run counts as one failed test. Exit code 0 only when something passed and nothing failed.
import { readFileSync } from 'node:fs'
import { z } from 'zod'

const reportSchema = z.object({
  numPassedTests: z.number(),
  numFailedTests: z.number(),
  testResults: z.array(z.object({ status: z.string(), assertionResults: z.array(z.unknown()) })),
})

const [file = '.offshoot/test-report.json'] = process.argv.slice(2)
const { numPassedTests, numFailedTests, testResults } = readReport()
const failedFiles = testResults.filter(
  ({ status, assertionResults }) => status === 'failed' && assertionResults.length === 0,
)
const failed = numFailedTests + failedFiles.length
process.stdout.write(`${numPassedTests} passed, ${failed} failed\n`)
process.exitCode = failed === 0 && numPassedTests > 0 ? 0 : 1

function readReport(): z.infer<typeof reportSchema> {
  try {
    return reportSchema.parse(JSON.parse(readFileSync(file, 'utf8')))
  } catch (error) {
    process.stderr.write(
      `There is no test report to count: ${error instanceof Error ? error.message : String(error)}\n`,
    )
    return { numPassedTests: 0, numFailedTests: 0, testResults: [] }
  }
}
