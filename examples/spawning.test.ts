import { createOffshoot, type Offshoot } from '@offshoot/shared'
import type { SpawnContext } from '@offshoot/shared/spawn-context'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ExampleStage, openExampleStage, researcher } from './example-stage.ts'
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

test('a running job is looked at: its step, its live text, and the messages so far', async () => {
  const { id } = await offshoot.spawn(alice, { bot: researcher, message: 'Never end.', mode: 'async' })
  const look = await waitUntil(async () => {
    const found = await spawning.lookIn(offshoot, 'alice', id)
    return found.lastText !== undefined && found
  })
  expect(look).toMatchObject({ state: 'running', step: 0, maxSteps: 25, lastText: expect.stringMatching(/^word/) })
  expect(look.messages).toMatchObject([
    { role: 'user', parts: [{ type: 'text', text: 'Never end.' }] },
    { role: 'assistant', parts: [{ type: 'step-start' }, { type: 'text', text: look.lastText }] },
  ])
  await offshoot.abort('alice', { jobId: id })
  expect(await spawning.lookIn(offshoot, 'alice', id)).toMatchObject({ state: 'aborted', messages: [{}, {}] })
  expect(await spawning.lookIn(offshoot, 'mallory', id)).toEqual({ state: 'failed' })
})

test('a spawn is aborted', async () => {
  expect(await spawning.changeYourMind(offshoot, alice, 'Never end.')).toMatchObject({ state: 'aborted' })
})

test('the end of a sync wait aborts the sub-agent, which keeps what it had said', async () => {
  const outcome = await spawning.stopWaiting(offshoot, alice, 'Never end.')
  expect(outcome).toMatchObject({ mode: 'sync', state: 'aborted', reason: 'aborted_by_parent', partial: true })
})

test('a job that runs out of its time keeps what it had said', async () => {
  const outcome = await spawning.takeWhatIsThere(offshoot, alice, 'Never end.', 2)
  expect(outcome).toMatchObject({
    state: 'failed',
    reason: 'timeout_total',
    answer: expect.stringMatching(/^word word /),
  })
})

test('of two sub-agents of a job that is aborted the one stays that was to stay', async () => {
  const parent = await offshoot.spawn(alice, { bot: researcher, message: 'Never end.', mode: 'async' })
  const below = { ...alice, parentJobId: parent.id, spawnDepth: 1 }
  const stays = await spawning.startWhatStays(offshoot, below, 'Never end.')
  const ends = await offshoot.spawn(below, { bot: researcher, message: 'Never end.', mode: 'async' })
  expect(await parent.abort()).toMatchObject({ state: 'aborted', abortedDescendants: 1 })
  expect(await ends.await()).toMatchObject({ state: 'aborted', reason: 'aborted_by_parent' })
  expect(await offshoot.check('alice', { jobId: stays.id })).not.toHaveProperty('reason')
  expect(await stays.abort('the test is over')).toMatchObject({ state: 'aborted', abortedDescendants: 0 })
})

test('overrides change model, prompt, steps and tools of one run', async () => {
  const outcome = await spawning.runItDifferently(offshoot, alice, 'How loud is Kling?')
  expect(outcome).toMatchObject({ state: 'completed', result: '80 decibels.' })
  const request = example.mock.requests('How loud is Kling?').at(-1)
  expect(request?.model).toBe('gpt-5')
  expect(request?.messages[0]?.content).toBe('You are researcher.\n\nAnswer in one sentence.')
  expect(request?.tools?.map((tool) => tool.function.name)).toEqual(['checkAgent'])
})

test('the same key gives the same job', async () => {
  const first = await spawning.startOnce(offshoot, alice, '17')
  const again = await spawning.startOnce(offshoot, alice, '17')
  expect(again.id).toBe(first.id)
  expect(await again.await()).toMatchObject({ state: 'completed', result: 'It is on its way.' })
  expect(example.mock.calls('Look into order 17.')).toBe(1)
})
