import { createOffshoot, type Offshoot } from '@offshoot/shared'
import type { SpawnContext } from '@offshoot/shared/spawn-context'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ExampleStage, openExampleStage } from './example-stage.ts'
import * as spawning from './spawning.ts'

let example: ExampleStage
let offshoot: Offshoot
beforeAll(async () => {
  example = await openExampleStage()
  offshoot = await createOffshoot({ environment: example.environment })
  const endless = { text: 'word '.repeat(5_000), pace: { ttft: 20, tps: 20 } }
  example.mock.answer('How loud is Kling?', ['80 decibels.'])
  example.mock.answer('Never end.', [endless])
  example.mock.answer('Look into order 17.', ['It is on its way.'])
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

test('a sync spawn brings the answer', async () => {
  expect(await spawning.waitForAnswer(offshoot, alice, 'How loud is Kling?')).toBe('80 decibels.')
})

test('an async spawn is looked at later', async () => {
  expect(await spawning.lookLater(offshoot, alice, 'How loud is Kling?')).toBe('80 decibels.')
})

test('a spawn is aborted', async () => {
  expect(await spawning.changeYourMind(offshoot, alice, 'Never end.')).toMatchObject({ state: 'aborted' })
})

test('the end of a sync wait aborts the sub-agent, which keeps what it had said', async () => {
  const outcome = await spawning.stopWaiting(offshoot, alice, 'Never end.')
  expect(outcome).toMatchObject({ mode: 'sync', state: 'aborted', reason: 'aborted_by_parent', partial: true })
})

test('overrides change model, prompt, steps and tools of one run', async () => {
  const outcome = await spawning.runItDifferently(offshoot, alice, 'How loud is Kling?')
  expect(outcome).toMatchObject({ state: 'completed', result: '80 decibels.' })
  const request = example.mock.requests('How loud is Kling?').at(-1)
  expect(request?.model).toBe('gpt-5')
  expect(request?.messages[0]?.content).toBe('You are researcher.\n\nAnswer in one sentence.')
  expect(request?.tools?.map((tool) => tool.function.name)).toEqual(['checkAgent'])
})

test('alice runs a sub-agent as bob only when she may', async () => {
  const { database } = example.stage.runtime
  expect(await spawning.runAsSomebodyElse(offshoot, alice, 'bob', 'How loud is Kling?')).toMatchObject({
    state: 'failed',
    jobId: '',
    reason: 'not_authorized',
    error: expect.stringContaining('Not authorized to spawn sub-agent as user bob.'),
  })
  await database.userDelegate.create({ data: { userId: 'alice', delegateUserId: 'bob' } })
  const outcome = await spawning.runAsSomebodyElse(offshoot, alice, 'bob', 'How loud is Kling?')
  expect(outcome.state).toBe('completed')
  const job = await database.agentJob.findUniqueOrThrow({ where: { id: outcome.jobId } })
  expect(job).toMatchObject({ ownerId: 'bob', triggeredById: 'alice', grant: 'delegate' })
  // By the context, without a row.
  const context = { ...alice, delegateUserIds: ['carol'] }
  const third = await spawning.runAsSomebodyElse(offshoot, context, 'carol', 'How loud is Kling?')
  expect(third.state).toBe('completed')
})

test('the same key gives the same job', async () => {
  const first = await spawning.startOnce(offshoot, alice, '17')
  const again = await spawning.startOnce(offshoot, alice, '17')
  expect(again.id).toBe(first.id)
  expect(await again.await()).toMatchObject({ state: 'completed', result: 'It is on its way.' })
  expect(example.mock.calls('Look into order 17.')).toBe(1)
})
