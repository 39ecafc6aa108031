import { readFileSync } from 'node:fs'

/** Sends a signal to a process that need not be our child; says whether there was such a process. */
export function killProcess(pid: number, signal: NodeJS.Signals | 0) {
  try {
    return process.kill(pid, signal)
  } catch {
    return false
  }
}

export function isAlive(pid: number) {
  return pid > 0 && killProcess(pid, 0) && !isZombie(pid)
}

/** It has ended, and nobody has asked how. */
function isZombie(pid: number) {
  if (process.platform !== 'linux') return false
  try {
    return /\) Z/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return true
  }
}
