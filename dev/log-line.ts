// Progress goes to stderr: stdout belongs to what a command answers.
process.stderr.on('error', () => {}) // whoever read it has gone; that is no reason to stop in disorder

export type Log = (line: string) => void

export const logLine: Log = (line) => process.stderr.write(`${line}\n`)

/** "0.9 s", since `startedAt` (of performance.now()). */
export function secondsSince(startedAt: number) {
  return `${((performance.now() - startedAt) / 1000).toFixed(1)} s`
}
