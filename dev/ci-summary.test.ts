// The last line of CI (.ci/summary.ts): what it counts of a report, and that the fault suite may not take too long.
import { execFile } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'

const SUMMARY = path.resolve(import.meta.dirname, '../.ci/summary.ts')

let folder: string
beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'offshoot-summary-'))
})
afterAll(() => rm(folder, { recursive: true, force: true }))

/** The summary of a report with three passed tests that took so many minutes. */
async function summaryOf(name: string, minutes: number): Promise<{ code: unknown; stdout: string; stderr: string }> {
  const startTime = 1_800_000_000_000
  const endTime = startTime + minutes * 60_000
  const testResults = [
    { status: 'passed', endTime: startTime + 1, assertionResults: [{}] },
    { status: 'passed', endTime, assertionResults: [{}, {}] },
  ]
  const file = path.join(folder, name)
  await writeFile(file, JSON.stringify({ numPassedTests: 3, numFailedTests: 0, startTime, testResults }))
  return new Promise((resolve) => {
    execFile(process.execPath, [SUMMARY, file], (error, stdout, stderr) => {
      resolve({ code: error?.code ?? 0, stdout, stderr })
    })
  })
}

test('a fault suite that took longer than 10 minutes fails, and says so', async () => {
  expect(await summaryOf('faults-report.json', 9.9)).toEqual({ code: 0, stdout: '3 passed, 0 failed\n', stderr: '' })
  const { code, stdout, stderr } = await summaryOf('faults-report.json', 10.2)
  expect([code, stdout]).toEqual([1, '3 passed, 1 failed\n'])
  expect(stderr).toContain('took 10.2 minutes. It may take 10.')
})

test('the other tests may take as long as they take', async () => {
  expect(await summaryOf('test-report.json', 90)).toMatchObject({ code: 0, stdout: '3 passed, 0 failed\n' })
})
