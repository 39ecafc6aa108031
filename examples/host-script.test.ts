import { execFile } from 'node:child_process'
import path from 'node:path'
import { promisify } from 'node:util'
import { textOf } from '@offshoot/testing/mock-request'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ExampleStage, openExampleStage, spawnCall } from './example-stage.ts'

const run = promisify(execFile)
const script = path.join(import.meta.dirname, 'host-script.ts')

let example: ExampleStage
beforeAll(async () => {
  example = await openExampleStage()
})
afterAll(() => example.close())

test('the host script lets a sub-agent work and prints its own answer', async () => {
  const { mock, stage, environment } = example
  mock.answer('Which bell is the best?', [{ calls: [spawnCall('Compare bells.')] }, 'Kling is the best bell.'])
  mock.answer('Compare bells.', ['Kling is louder than Trill.'])

  const { stdout } = await run(process.execPath, [script, 'Which bell is the best?'], {
    env: { ...process.env, ...environment },
  })

  expect(stdout).toBe('Kling is the best bell.\n')
  const [job] = await stage.runtime.database.agentJob.findMany()
  expect(job).toMatchObject({
    botLabel: 'forge/researcher',
    ownerId: 'alice',
    parentConvoId: 'chat-1',
    depth: 1,
    state: 'completed',
    result: 'Kling is louder than Trill.',
  })
  // The host's model read the result, and nothing else of the sub-agent's conversation.
  const [, second] = mock.requests('Which bell is the best?')
  expect(JSON.parse(textOf(second?.messages.find((message) => message.role === 'tool')))).toEqual({
    state: 'completed',
    reason: 'completed',
    result: 'Kling is louder than Trill.',
    jobId: job?.id,
  })
})
