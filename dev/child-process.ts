import type { ChildProcess } from 'node:child_process'
import type { Readable } from 'node:stream'

export type WatchedChild = {
  name: string
  pid: number
  /** How it ended, in words (`SIGKILL`, `exit code 1`), when nobody had called `stop`. */
  endedUnasked: Promise<string>
  /** Ends it: with its stop signal, by force after its grace time. */
  stop(): Promise<void>
}

export type WatchOptions<Ready> = {
  /** As a person calls it. */
  name: string
  /** Resolves when the child serves. */
  ready: Promise<Ready>
  /** Gets all that the child writes, and its last lines up to there. */
  onText?: (text: string, lastLines: string) => void
  /** Asks it to end in good order, for which it gets `graceMs`. */
  stopSignal: NodeJS.Signals
  graceMs: number
  signal: AbortSignal
}

const READY_MS = 30_000

/**
 * Waits until a child that was just spawned serves.
 * @throws Error with its last lines, when it ends before or needs more than 30 s; it does not run then.
 */
export async function untilReady<Ready>(child: ChildProcess, options: WatchOptions<Ready>) {
  const ended = new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message))
    child.once('close', (code, signal) => resolve(signal ?? `exit code ${code}`))
  })
  const unasked = Promise.withResolvers<string>()
  let asked = false
  void ended.then((how) => asked || unasked.resolve(how))
  const stop = async (graceMs = options.graceMs) => {
    asked = true
    child.kill(options.stopSignal)
    const force = setTimeout(() => child.kill('SIGKILL'), graceMs)
    await ended
    clearTimeout(force)
  }

  let lastLines = ''
  const read = (stream: Readable | null) =>
    stream?.setEncoding('utf8').on('data', (text: string) => {
      lastLines = (lastLines + text).split('\n').slice(-20).join('\n')
      options.onText?.(text, lastLines)
    })
  read(child.stdout)
  read(child.stderr)

  const failed = Promise.withResolvers<string>()
  const late = setTimeout(() => failed.resolve(`it is not ready after ${READY_MS / 1000} s`), READY_MS)
  const giveUp = () => failed.resolve('stopped')
  options.signal.addEventListener('abort', giveUp, { once: true })
  if (options.signal.aborted) giveUp()
  const outcome = await Promise.race([
    options.ready.then((ready) => ({ ready })),
    Promise.race([failed.promise, ended]).then((failure) => ({ failure })),
  ])
  clearTimeout(late)
  options.signal.removeEventListener('abort', giveUp)
  if ('failure' in outcome || child.pid === undefined) {
    await stop(Math.min(options.graceMs, 5_000))
    const failure = 'failure' in outcome ? outcome.failure : 'it has no process'
    throw new Error(`${options.name} did not start: ${failure}\n${lastLines.trim()}`.trim())
  }
  const watched: WatchedChild = {
    name: options.name,
    pid: child.pid,
    endedUnasked: unasked.promise,
    stop: () => stop(),
  }
  return { ...watched, ready: outcome.ready }
}
