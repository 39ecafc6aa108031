// Real processes of Offshoot, started and killed by tests.
import { type ChildProcess, fork } from 'node:child_process'
import path from 'node:path'

export interface TestProcess {
  pid: number
  /** Of an API: where it listens. */
  url: string
  /** What it has written to stderr. */
  output(): string
  kill(signal: NodeJS.Signals): void
  /** Tells it something over IPC. */
  send(message: object): void
  /** What it has told over IPC. */
  told(): unknown[]
  /** Resolves with its exit code, or the signal that ended it. */
  exited: Promise<number | NodeJS.Signals | null>
  /** Asks it to end, and waits for that. */
  stop(): Promise<void>
}

const PACKAGES = path.resolve(import.meta.dirname, '../../packages')
const READY_WITHIN_MS = 30_000
const END_WITH_PARENT = new URL('end-with-parent.ts', import.meta.url).href

export function startWorkerProcess(
  environment: Record<string, string>,
  nodeFlags?: readonly string[],
): Promise<TestProcess> {
  return startProcess(path.join(PACKAGES, 'worker/src/main.ts'), environment, nodeFlags)
}

export function startApiProcess(environment: Record<string, string>): Promise<TestProcess> {
  return startProcess(path.join(PACKAGES, 'api/src/main.ts'), { API_PORT: '0', ...environment })
}

/** Runs a program of ours that says `{ ready: true, url? }` to its parent once it is. */
export async function startProcess(
  file: string,
  environment: Record<string, string>,
  nodeFlags: readonly string[] = [],
): Promise<TestProcess> {
  const { PATH = '', HOME = '' } = process.env
  const child = fork(file, {
    env: { PATH, HOME, ...environment },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    execArgv: ['--import', END_WITH_PARENT, ...nodeFlags],
  })
  const told: unknown[] = []
  child.on('message', (message) => told.push(message))
  let output = ''
  child.stdout?.on('data', (chunk: Buffer) => (output += chunk.toString()))
  child.stderr?.on('data', (chunk: Buffer) => (output += chunk.toString()))
  const exited = new Promise<number | NodeJS.Signals | null>((resolve) =>
    child.once('exit', (code, signal) => resolve(code ?? signal)),
  )
  const url = await untilReady(child, exited, () => output)
  return {
    pid: child.pid ?? 0,
    url,
    output: () => output,
    kill: (signal) => void child.kill(signal),
    send: (message) => void child.send(message),
    told: () => told,
    exited,
    async stop() {
      if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM')
      const limit = setTimeout(() => child.kill('SIGKILL'), 20_000)
      await exited
      clearTimeout(limit)
    },
  }
}

async function untilReady(child: ChildProcess, exited: Promise<unknown>, output: () => string): Promise<string> {
  const ready = new Promise<string>((resolve) => {
    child.on('message', (message) => {
      if (typeof message === 'object' && message !== null && 'ready' in message)
        resolve('url' in message ? String(message.url) : '')
    })
  })
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not ready within ${READY_WITHIN_MS} ms:\n${output()}`)), READY_WITHIN_MS)
  })
  const gone = exited.then((code) => {
    throw new Error(`ended (${String(code)}) before it was ready:\n${output()}`)
  })
  try {
    return await Promise.race([ready, late, gone])
  } finally {
    clearTimeout(timer)
    gone.catch(() => undefined)
  }
}
