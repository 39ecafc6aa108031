// The commands with which people and containers start Offshoot: SIGTERM reaches Node through them, and drains.
import { type ChildProcess, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { eventsOf, readJob, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { type RawModel, startRawModel } from '@offshoot/testing/raw-model'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { isAlive } from '../dev/kill-process.ts'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { z } from 'zod'

const root = path.resolve(import.meta.dirname, '..')
const READY_WITHIN_MS = 60_000

let stage: TestStage
let model: RawModel
let command: ChildProcess | undefined
beforeEach(async () => {
  model = await startRawModel()
  stage = await openTestStage({ environment: { OPENAI_BASE_URL: model.baseUrl, API_PORT: '0' } })
  await stage.putBot('bot')
})
afterEach(async () => {
  command?.kill('SIGKILL')
  await stage.close()
  await model.stop()
})

interface Started {
  process: ChildProcess
  stdout(): string
  /** What it says to people. */
  stderr(): string
  exited: Promise<number | NodeJS.Signals | null>
}

function start([file = '', ...args]: readonly string[]): Started {
  const child = spawn(file, args, {
    cwd: root,
    env: { ...process.env, ...stage.environment },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  command = child
  let stdout = ''
  let stderr = ''
  child.stdout.on('data', (chunk: Buffer) => (stdout += chunk.toString()))
  child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()))
  const exited = new Promise<number | NodeJS.Signals | null>((resolve) =>
    child.once('exit', (code, signal) => resolve(code ?? signal)),
  )
  return { process: child, stdout: () => stdout, stderr: () => stderr, exited }
}

/** What the image's target runs: the `CMD` of its last stage, which must be a list of arguments, so that no shell is between. */
function commandOf(target: string): string[] {
  const stages = readFileSync(path.join(root, 'Dockerfile'), 'utf8').split(/^FROM /m)
  const text = stages.find((each) => new RegExp(`^\\S+ AS ${target}$`, 'm').test(each)) ?? ''
  const [, list = ''] = /^CMD (.*)$/m.exec(text) ?? []
  return z.array(z.string()).parse(JSON.parse(list))
}

/** A worker that is asked to end in the middle of a step hands its job over at the end of that step. */
async function expectDrain(worker: { askToEnd(): void; isGone(): Promise<unknown> }): Promise<void> {
  const finish = Promise.withResolvers<void>()
  model.answer('hand me over', async (reply) => {
    reply.text('Working.')
    await finish.promise
    reply.call('checkAgent', { jobId: 'nothing' }, 'call_0')
    reply.finish()
  })
  const { id } = await spawnRoot(stage, 'bot', 'hand me over')
  await untilLiveText(stage, id, 'Working.')
  worker.askToEnd()
  const { database } = stage.runtime
  await waitUntil(() => database.worker.findFirst({ where: { drainingAt: { not: null } } }), { what: 'the drain' })
  expect(await readJob(stage, id)).toMatchObject({ state: 'running', attempt: 1 })
  finish.resolve()
  await worker.isGone()
  expect(await readJob(stage, id)).toMatchObject({ state: 'pending', attempt: 1, steps: 1, crashes: 0 })
  expect(await eventsOf(stage, id)).toEqual(['spawned', 'handed-back'])
  expect(model.requests()).toHaveLength(1)
  expect(await database.worker.count()).toBe(0)
}

const readySchema = z.object({ pids: z.object({ api: z.number(), workers: z.array(z.number()) }) })

test.for([
  // npm ends by the signal itself, and leaves the rest to who runs below it.
  {
    name: 'pnpm start',
    argv: ['npx', '-y', 'pnpm@12.21.0', 'start', '--json', '--workers', '1'],
    ends: [0, 143, 'SIGTERM'],
  },
  { name: 'node dev/start.ts', argv: ['node', 'dev/start.ts', '--json', '--workers', '1'], ends: [0] },
])('LOSS-13: SIGTERM to "$name" drains its worker and ends all of its processes', async ({ argv, ends }) => {
  const stack = start(argv)
  const line = await waitUntil(() => stack.stdout().match(/^\{.*\}$/m)?.[0], {
    within: READY_WITHIN_MS,
    what: 'the ready line',
  }).catch((error: unknown) => {
    throw new Error(stack.stderr(), { cause: error })
  })
  const { pids } = readySchema.parse(JSON.parse(line))
  await expectDrain({
    askToEnd: () => void stack.process.kill('SIGTERM'),
    isGone: () => waitUntil(() => [pids.api, ...pids.workers].every((pid) => !isAlive(pid)), { what: 'the end' }),
  })
  expect(ends).toContain(await stack.exited)
})

test('LOSS-13: every command in the Dockerfile is a list of arguments, without a shell before Node', () => {
  const commands = [...readFileSync(path.join(root, 'Dockerfile'), 'utf8').matchAll(/^\s*(?:CMD|ENTRYPOINT) (.*)$/gm)]
  expect(commands.length).toBeGreaterThanOrEqual(3)
  for (const [, list = ''] of commands) expect(z.array(z.string()).parse(JSON.parse(list))[0]).toBe('node')
})

test('LOSS-13: SIGTERM to the worker image’s command drains it, with exit code 0', async () => {
  const worker = start(commandOf('worker'))
  await waitUntil(() => stage.runtime.database.worker.findFirst(), { within: READY_WITHIN_MS, what: 'the worker' })
  await expectDrain({ askToEnd: () => void worker.process.kill('SIGTERM'), isGone: () => worker.exited })
  expect(await worker.exited).toBe(0)
})

test('LOSS-13: SIGTERM to a worker that is not ready yet is not lost', async () => {
  const worker = start(commandOf('worker'))
  await waitUntil(() => stage.runtime.database.worker.findFirst(), { within: READY_WITHIN_MS, what: 'the worker' })
  worker.process.kill('SIGTERM')
  expect(await worker.exited).toBe(0)
  expect(await stage.runtime.database.worker.count()).toBe(0)
})

test('LOSS-13: SIGTERM to the API image’s command ends it, with exit code 0', async () => {
  const { database } = stage.runtime
  const api = start(commandOf('api'))
  await waitUntil(() => database.lease.findFirst(), { within: READY_WITHIN_MS, what: 'the API’s reconciler' })
  api.process.kill('SIGTERM')
  expect(await api.exited).toBe(0)
  expect(await database.lease.count()).toBe(0)
})
