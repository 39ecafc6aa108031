import { readFileSync, statSync } from 'node:fs'
import path from 'node:path'

export type PostgresUser = { name: string; uid: number; gid: number }

/** PostgreSQL refuses to run as root. Who runs it then: `postgres` where that user exists, else `nobody`. */
export function postgresUser(): PostgresUser | undefined {
  if (process.getuid?.() !== 0) return undefined
  const users = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map((line) => line.split(':'))
  for (const name of ['postgres', 'nobody']) {
    const [, , uid, gid] = users.find(([candidate]) => candidate === name) ?? []
    if (uid !== undefined && gid !== undefined) return { name, uid: Number(uid), gid: Number(gid) }
  }
  throw new Error(
    'PostgreSQL may not run as root, and there is neither a user `postgres` nor `nobody`: set DATABASE_URL.',
  )
}

/** Whether a user may reach what lies in a folder that exists: every folder on the way must let them pass. */
export function mayEnter(user: PostgresUser | undefined, folder: string): boolean {
  if (user === undefined) return true
  const { mode, uid, gid } = statSync(folder)
  const passes = user.uid === uid ? 0o100 : user.gid === gid ? 0o010 : 0o001
  const parent = path.dirname(folder)
  return (mode & passes) !== 0 && (parent === folder || mayEnter(user, parent))
}
