import { createOffshoot, type Offshoot } from '@offshoot/shared'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ExampleStage, openExampleStage } from './example-stage.ts'
import { withinLimits } from './limits.ts'

let example: ExampleStage
let offshoot: Offshoot
beforeAll(async () => {
  example = await openExampleStage()
  offshoot = await createOffshoot({ environment: example.environment })
  example.mock.answer('How loud is Kling?', ['80 decibels.'])
})
afterAll(async () => {
  await offshoot.close()
  await example.close()
})

test('a spawn with limits of its own answers within them, and its row knows them', async () => {
  const outcome = await withinLimits(
    offshoot,
    {
      userId: 'alice',
      parentConvoId: 'chat-1',
      parentConvoOwnerId: 'alice',
      parentConvoSpaceId: null,
      spawnDepth: 0,
    },
    'How loud is Kling?',
  )
  expect(outcome).toMatchObject({ state: 'completed', result: '80 decibels.' })
  const job = await example.stage.runtime.database.agentJob.findUniqueOrThrow({ where: { id: outcome.jobId } })
  expect(job).toMatchObject({ maxTotalTokens: 50_000n, maxSteps: 5, timeoutMs: 120_000, budgeted: true })
})
