import { spawn } from 'node:child_process'
import { untilReady, type WatchedChild } from './child-process.ts'

export type ServerCommand = {
  /** As a person calls it. */
  name: string
  file: string
  args: readonly string[]
  cwd: string
  env?: Record<string, string>
  /** Written to its standard input. */
  input?: string
  /** Who runs it, when that is someone else than who runs us. */
  user?: { uid: number; gid: number }
  /** What it writes once it serves. */
  readyWhen: RegExp
  /** Asks it to end in good order. */
  stopSignal: NodeJS.Signals
  signal: AbortSignal
}

/**
 * Starts a server that says in its output when it serves, and waits for that.
 * @throws Error with its last lines, when it does not come to that; it does not run then.
 */
export async function startServer(command: ServerCommand): Promise<WatchedChild> {
  command.signal.throwIfAborted()
  const child = spawn(command.file, command.args, {
    cwd: command.cwd,
    env: { ...process.env, ...command.env },
    stdio: ['pipe', 'pipe', 'pipe'],
    ...command.user,
  })
  child.stdin.on('error', () => {}).end(command.input ?? '')
  const ready = Promise.withResolvers<void>()
  return untilReady(child, {
    name: command.name,
    ready: ready.promise,
    onText: (_, lastLines) => command.readyWhen.test(lastLines) && ready.resolve(),
    stopSignal: command.stopSignal,
    graceMs: 5_000,
    signal: command.signal,
  })
}
