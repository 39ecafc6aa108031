import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import { text } from 'node:stream/consumers'
import { promisify } from 'node:util'
import { callsTool, type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'

const run = promisify(execFile)
const script = path.join(import.meta.dirname, 'inline-program.ts')

let raw: RawModel
let stage: TestStage
let env: NodeJS.ProcessEnv
beforeAll(async () => {
  raw = await startRawModel()
  stage = await openTestStage({ runsInline: true, environment: { OPENAI_BASE_URL: raw.baseUrl } })
  await stage.putBot('researcher')
  env = { ...process.env, ...stage.environment }
})
afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const call = { bot: { botGroup: 'forge', botHandle: 'researcher' }, message: 'Compare bells.' }

test('the program runs a sub-agent and its sub-agent by itself, with no worker and no Redis, and ends', async () => {
  raw.answer('Which bell?', callsTool('spawnAgent', call), says('Kling.'))
  raw.answer('Compare bells.', says('Kling is louder than Trill.'))
  const { stdout } = await run(process.execPath, [script, 'Which bell?'], { env })
  expect(stdout).toBe('Kling.\n')
  const jobs = await stage.runtime.database.agentJob.findMany({ orderBy: { depth: 'asc' } })
  expect(jobs).toMatchObject([
    { runner: 'inline', depth: 1, state: 'completed', result: 'Kling.' },
    { runner: 'inline', depth: 2, state: 'completed', result: 'Kling is louder than Trill.' },
  ])
  expect(await stage.runtime.database.worker.count()).toBe(0)
})

test('told to end, it prints what its sub-agent had by the end of its step', async () => {
  const finish = Promise.withResolvers<void>()
  raw.answer('Think long.', async (reply) => {
    reply.text('So far.')
    await finish.promise
    reply.call('checkAgent', { jobId: 'nothing' }, 'call_check')
    reply.finish()
  })
  const program = spawn(process.execPath, [script, 'Think long.'], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  const printed = text(program.stdout)
  await waitUntil(() => raw.requests('Think long.').length === 1)
  program.kill('SIGTERM')
  await waitUntil(() => stage.runtime.database.worker.findFirst({ where: { drainingAt: { not: null } } }))
  finish.resolve()
  const [code] = await once(program, 'exit')
  expect(code).toBe(0)
  expect(await printed).toContain("reason: 'aborted_by_shutdown'")
  expect(await printed).toContain("result: 'So far.'")
})
