import { execFile, spawn } from 'node:child_process'
import path from 'node:path'
import { promisify } from 'node:util'
import { createOffshoot, type Offshoot } from '@offshoot/shared'
import type { SpawnContext } from '@offshoot/shared/spawn-context'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ExampleStage, openExampleStage } from './example-stage.ts'
import * as handles from './handles.ts'

const script = path.join(import.meta.dirname, 'long-job.ts')
const WORDS = `${'word '.repeat(60)}end`

let example: ExampleStage
let offshoot: Offshoot
beforeAll(async () => {
  example = await openExampleStage()
  offshoot = await createOffshoot({ environment: example.environment })
  example.mock.answer('Bells.', [{ text: WORDS, pace: { ttft: 20, tps: 40 } }])
  example.mock.answer('Never end.', [{ text: 'word '.repeat(5_000), pace: { ttft: 20, tps: 20 } }])
  example.mock.answer('Come to an end.', ['It is over.'])
})
afterAll(async () => {
  await offshoot.close()
  await example.close()
})

const alice: SpawnContext = {
  userId: 'alice',
  parentConvoId: 'chat-1',
  parentConvoOwnerId: 'alice',
  parentConvoSpaceId: null,
  spawnDepth: 0,
}

test('a report is started, asked for too early, hurried, and fetched', async () => {
  const id = await handles.startReport(offshoot, alice, 'Bells.')
  expect(await handles.fetchReport(offshoot, 'alice', id, 100)).toBe('Not yet.')
  expect(await handles.fetchReport(offshoot, 'mallory', id)).toBe('There is no such report.')
  await waitUntil(() => example.mock.calls('Bells.') === 1)
  expect(await handles.hurry(offshoot, 'alice', id)).toEqual({ accepted: true })
  expect(await handles.fetchReport(offshoot, 'alice', id, 30_000)).toBe('It is over.')
})

test('what a chat has started ends with it', async () => {
  await handles.startReport(offshoot, { ...alice, parentConvoId: 'chat-2' }, 'Never end.')
  expect(await handles.closeChat(offshoot, 'alice', 'chat-2')).toEqual(['Never end.'])
  expect(await handles.closeChat(offshoot, 'alice', 'chat-2')).toEqual([])
})

test('a handle shows the text as it grows', async () => {
  const shown: string[] = []
  const handle = await offshoot.attach('alice', await handles.startReport(offshoot, alice, 'Bells.'))
  if (handle === undefined) throw new Error('the job is not there')
  await handles.show(handle, (text) => void shown.push(text))
  expect(shown.at(-1)).toBe(WORDS)
  expect(shown.length).toBeGreaterThan(2)
})

test('a job outlives the process that started it: another one attaches and gets the outcome', async ({
  onTestFinished,
}) => {
  const env = { ...process.env, ...example.environment }
  const first = spawn(process.execPath, [script, 'start', 'Bells.'], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  onTestFinished(() => void first.kill('SIGKILL'))
  let printed = ''
  first.stdout.on('data', (chunk: Buffer) => (printed += chunk.toString()))
  const id = await waitUntil(() => /^(.+)\n/.exec(printed)?.[1], { what: 'the id of the job' })
  first.kill('SIGKILL')
  await new Promise((resolve) => first.once('exit', resolve))
  expect(printed).toBe(`${id}\n`)

  const { stdout } = await promisify(execFile)(process.execPath, [script, 'attach', id], { env })
  expect(stdout).toBe(`${id}\n${WORDS}\n`)
  const job = await example.stage.runtime.database.agentJob.findUniqueOrThrow({ where: { id } })
  expect(job).toMatchObject({ state: 'completed', mode: 'sync', attempt: 1 })
})
