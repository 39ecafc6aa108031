// `npx pnpm start` puts up to four processes before ours: npm, a shell, pnpm, a shell. Whoever ends the first one means the
// whole, but npm and the shells die of a SIGTERM without passing it on. So we look whether they are still there.
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { basename } from 'node:path'

type Runner = { pid: number; parentPid: number; command: string[] }

const LOOK_MS = 500
const RUNNER = /^(npm|npx|pnpm)(-cli)?(\.c?js)?$/

/**
 * Calls `onGone` once when a process of the npm or pnpm that runs this one has ended. Anything else that started us, such
 * as a terminal's shell, may end as it likes. On Windows it never calls.
 */
export function watchRunners(onGone: () => void) {
  const chain = findRunners()
  if (chain.length === 0) return
  const timer = setInterval(() => {
    if (chain.every(({ pid, parentPid }) => parentOf(pid) === parentPid)) return
    clearInterval(timer)
    onGone()
  }, LOOK_MS)
  timer.unref()
}

/** Who is whose child, from this process up to the topmost of its runners. */
function findRunners() {
  const ancestors: Runner[] = []
  for (let pid = process.pid; pid > 1;) {
    const parent = describe(pid)?.parentPid
    const command = parent === undefined ? undefined : describe(parent)?.command
    if (parent === undefined || command === undefined || !(isRunner(command) || isShell(command))) break
    ancestors.push({ pid, parentPid: parent, command })
    pid = parent
  }
  // A shell counts only between runners.
  const topmost = ancestors.findLastIndex(({ command }) => isRunner(command))
  return ancestors.slice(0, topmost + 1)
}

function isRunner(command: readonly string[]) {
  const [program = '', script = ''] = command
    .join(' ')
    .split(' ')
    .map((word) => basename(word))
  return RUNNER.test(program) || (program === 'node' && RUNNER.test(script))
}

function isShell(command: readonly string[]) {
  return /^(sh|bash|dash|zsh)$/.test(basename(command[0] ?? '')) && command[1] === '-c'
}

function parentOf(pid: number) {
  return pid === process.pid ? process.ppid : describe(pid)?.parentPid
}

function describe(pid: number) {
  try {
    if (process.platform === 'linux') {
      const status = readFileSync(`/proc/${pid}/stat`, 'utf8')
      const [, parentPid] = status.slice(status.lastIndexOf(')') + 2).split(' ')
      const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').filter(Boolean)
      return { parentPid: Number(parentPid), command }
    }
    if (process.platform === 'win32') return undefined
    const output = execFileSync('ps', ['-o', 'ppid=,command=', '-p', String(pid)], { encoding: 'utf8' }).trim()
    const [parentPid, ...command] = output.split(/\s+/)
    return { parentPid: Number(parentPid), command }
  } catch {
    return undefined // it has ended
  }
}
