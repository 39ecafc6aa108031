// What a stretch of work has cost: CPU and memory by process, Redis commands, Postgres commits.
import { readFile, writeFile } from 'node:fs/promises'
import { Redis } from 'ioredis'
import { Client } from 'pg'

/** Of Linux: /proc counts CPU time in hundredths of a second. */
const MS_PER_TICK = 10

/** User and system time of a process, its threads included, in milliseconds. */
export async function cpuMs(pid: number): Promise<number> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * MS_PER_TICK
}

export interface Cost<Name extends string, Value> {
  value: Value
  wallMs: number
  /** By the names given, and of this process, which is the host. */
  cpuMs: Record<Name | 'host', number>
}

/** Runs `work`, and answers what it has cost in wall time, and each process in CPU time. */
export async function costOf<Name extends string, Value>(
  pids: Record<Name, number>,
  work: () => Promise<Value>,
): Promise<Cost<Name, Value>> {
  const all = Object.entries<number>({ ...pids, host: process.pid })
  const look = () => Promise.all(all.map(([, pid]) => cpuMs(pid)))
  const before = await look()
  const startedAt = performance.now()
  const value = await work()
  const wallMs = performance.now() - startedAt
  const after = await look()
  const spent = all.map(([name], at) => [name, (after[at] ?? NaN) - (before[at] ?? NaN)])
  // Its keys are the names given.
  return { value, wallMs, cpuMs: Object.fromEntries(spent) as Record<Name | 'host', number> }
}

/** The most memory that a process has had since `forgetPeak`, in MiB. */
export async function peakMiB(pid: number): Promise<number> {
  return statusMiB(pid, 'VmHWM')
}

/** From now on `peakMiB` begins anew. */
export async function forgetPeak(pid: number): Promise<void> {
  await writeFile(`/proc/${pid}/clear_refs`, '5')
}

export async function residentMiB(pid: number): Promise<number> {
  return statusMiB(pid, 'VmRSS')
}

async function statusMiB(pid: number, field: string): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8')
  return Number(new RegExp(`^${field}:\\s+(\\d+) kB`, 'm').exec(status)?.[1] ?? NaN) / 1_024
}

export interface ServiceMeter {
  /** Commands that Redis has run, those inside scripts included. */
  redisCommands(): Promise<number>
  /** Transactions that Postgres has committed in this database, single statements included. */
  commits(): Promise<number>
  close(): Promise<void>
}

/**
 * A session of Postgres tells the shared counters of its commits at most once a second, and when it has been idle for ten.
 */
const STATISTICS_LATE_MS = 11_000

export async function openServiceMeter({
  databaseUrl,
  redisUrl,
}: {
  databaseUrl: string
  redisUrl: string
}): Promise<ServiceMeter> {
  const redis = new Redis(redisUrl)
  const client = new Client({ connectionString: databaseUrl })
  await client.connect()
  return {
    async redisCommands() {
      const stats = await redis.info('commandstats')
      return [...stats.matchAll(/calls=(\d+)/g)].reduce((sum, [, calls]) => sum + Number(calls), 0)
    },
    async commits() {
      await new Promise((resolve) => setTimeout(resolve, STATISTICS_LATE_MS))
      const { rows } = await client.query<{ commits: string }>(
        'select xact_commit as commits from pg_stat_database where datname = current_database()',
      )
      return Number(rows[0]?.commits ?? NaN)
    },
    async close() {
      redis.disconnect()
      await client.end()
    },
  }
}
