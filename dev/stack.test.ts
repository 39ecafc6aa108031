import { spawn } from 'node:child_process'
import path from 'node:path'
import { createFreshDatabase, type FreshDatabase } from '@offshoot/testing/fresh-database'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { z } from 'zod'

let database: FreshDatabase

beforeAll(async () => {
  database = await createFreshDatabase()
})

afterAll(() => database.drop())

/** Runs a script of this folder as a person would, on services that are there. */
function run(script: string, args: string[]) {
  const child = spawn(process.execPath, [path.join(import.meta.dirname, script), ...args], {
    env: {
      ...process.env,
      DATABASE_URL: database.databaseUrl,
      QUEUE_PREFIX: `{${script}-${process.pid}}`,
      OPENAI_API_KEY: '',
      OPENAI_BASE_URL: '',
      API_PORT: '0',
      LOG_LEVEL: 'info',
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let stdout = ''
  let stderr = ''
  child.stdout.on('data', (chunk: Buffer) => (stdout += chunk.toString()))
  child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()))
  const exited = new Promise<number | NodeJS.Signals | null>((resolve) =>
    child.once('exit', (code, signal) => resolve(code ?? signal)),
  )
  return { child, stdout: () => stdout, stderr: () => stderr, exited }
}

const readySchema = z.strictObject({
  ready: z.literal(true),
  api: z.url(),
  redis: z.string(),
  database: z.string(),
  apiKeys: z.strictObject({ admin: z.string(), alice: z.string(), bob: z.string() }),
  pids: z.strictObject({ api: z.number(), workers: z.array(z.number()).length(2) }),
})

describe('pnpm start --json', () => {
  test('prints one line when all is up, serves, and ends its processes on SIGTERM', async () => {
    const stack = run('start.ts', ['--json', '--workers', '2'])
    try {
      await waitUntil(() => stack.stdout().includes('\n'), {
        within: 60_000,
        what: `the ready line; so far:\n${stack.stderr()}`,
      })
      const { api, apiKeys, pids } = readySchema.parse(JSON.parse(stack.stdout()))

      const answer = await fetch(new URL('/v1/agents', api), {
        method: 'POST',
        headers: { authorization: `Bearer ${apiKeys.alice}`, 'content-type': 'application/json' },
        body: JSON.stringify({ bot: { botGroup: 'forge', botHandle: 'task-runner' }, message: 'ping' }),
      })
      expect(await answer.json()).toMatchObject({
        mode: 'sync',
        state: 'completed',
        result: expect.stringContaining('ping'),
      })

      stack.child.kill('SIGTERM')
      expect(await stack.exited).toBe(0)
      expect(stack.stdout().trimEnd().split('\n')).toHaveLength(1)
      for (const pid of [pids.api, ...pids.workers]) expect(isAlive(pid)).toBe(false)
    } finally {
      stack.child.kill('SIGKILL')
    }
  })

  test('refuses a number of workers that is none', async () => {
    const stack = run('start.ts', ['--workers', 'many'])
    expect(await stack.exited).not.toBe(0)
    expect(stack.stderr()).toContain('It must be a whole number from 0 to 100.')
  })
})

describe('pnpm demo', () => {
  test('runs the main job and says how it went', async () => {
    const demo = run('demo.ts', [])
    expect(await demo.exited, demo.stderr()).toBe(0)
    expect(demo.stdout()).toContain('forge/planner answers:')
    expect(demo.stdout().trimEnd().split('\n').at(-1)).toBe('demo: ok, 5 jobs: 4 completed, 1 aborted, 0 failed')
  })
})

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
