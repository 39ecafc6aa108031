import { spawn } from 'node:child_process'
import path from 'node:path'
import { projectFolder } from '../prisma/prisma-cli.ts'
import { untilReady } from './child-process.ts'
import type { Services } from './services.ts'

export type NodeProcessOptions = {
  /** As a person calls it. */
  name: string
  /** From the project's folder. */
  file: string
  env: Record<string, string>
  adopt: Services['adopt']
  signal: AbortSignal
}

/** What such a process sends over its IPC channel when it serves. */
type ReadyMessage = { ready: true; url?: string }

/**
 * Runs one of our own `main.ts` as a child, its output on our stderr, and waits for its message `{ ready: true }`.
 * @throws Error with its last lines, when it ends before or needs more than 30 s; it does not run then.
 */
export async function startNodeProcess(options: NodeProcessOptions) {
  options.signal.throwIfAborted()
  const child = spawn(process.execPath, [path.join(projectFolder, options.file)], {
    cwd: projectFolder,
    env: { ...process.env, ...options.env },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    detached: true, // out of reach of a terminal's Ctrl-C: we say when it ends
  })
  options.adopt(child)
  const { ready, ...watched } = await untilReady(child, {
    name: options.name,
    ready: new Promise<ReadyMessage>((resolve) =>
      child.on('message', (message) => isReady(message) && resolve(message)),
    ),
    onText: (text) => process.stderr.write(text),
    stopSignal: 'SIGTERM',
    graceMs: 40_000, // a worker ends its jobs' current steps first
    signal: options.signal,
  })
  return { ...watched, url: ready.url, kill: () => child.kill('SIGKILL') }
}

function isReady(message: unknown): message is ReadyMessage {
  return typeof message === 'object' && message !== null && 'ready' in message && message.ready === true
}
