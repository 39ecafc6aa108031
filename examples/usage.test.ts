import path from 'node:path'
import { createOffshoot, type Offshoot } from '@offshoot/shared'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ExampleStage, openExampleStage, researcher, spawnCall } from './example-stage.ts'
import { describeCost } from './usage.ts'

let example: ExampleStage
let offshoot: Offshoot
beforeAll(async () => {
  example = await openExampleStage({ OFFSHOOT_CONFIG: path.join(import.meta.dirname, 'usage.offshoot.ts') })
  offshoot = await createOffshoot({ environment: example.environment })
  await example.stage.putBot('planner')
  await example.stage.putBot('free', { modelName: 'gpt-5-mini' })
  const usage = { input: 1_000, output: 200 }
  example.mock.answer('Plan the launch.', [
    { calls: [spawnCall('How loud is Kling?')], usage },
    { text: 'Loudly.', usage },
  ])
  example.mock.answer('How loud is Kling?', [{ text: '80 decibels.', usage }])
})
afterAll(async () => {
  await offshoot.close()
  await example.close()
})

const caller = {
  userId: 'alice',
  parentConvoId: 'chat-1',
  parentConvoOwnerId: 'alice',
  parentConvoSpaceId: null,
  spawnDepth: 0,
}

test('a job tells what it has used itself, and what all below it have', async () => {
  const bot = { ...researcher, botHandle: 'planner' }
  const { jobId } = await offshoot.run(caller, { bot, message: 'Plan the launch.' })
  expect(await describeCost(offshoot, 'alice', jobId)).toBe(
    'itself: 2400 tokens, $0.0065\nall 2 jobs: 3600 tokens, $0.00975',
  )
  expect(await describeCost(offshoot, 'mallory', jobId)).toBe('There is no such job.')
})

test('a model without a price has an unknown cost', async () => {
  const bot = { ...researcher, botHandle: 'free' }
  const { jobId } = await offshoot.run(caller, { bot, message: 'How loud is Kling?' })
  expect(await describeCost(offshoot, 'alice', jobId)).toBe(
    'itself: 1200 tokens, unknown\nall 1 jobs: 1200 tokens, unknown',
  )
})
