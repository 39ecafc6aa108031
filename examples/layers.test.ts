import path from 'node:path'
import { createOffshoot, type Offshoot } from '@offshoot/shared'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ExampleStage, openExampleStage } from './example-stage.ts'
import config, { research } from './layers.ts'

let example: ExampleStage
let offshoot: Offshoot
beforeAll(async () => {
  example = await openExampleStage({ OFFSHOOT_CONFIG: path.join(import.meta.dirname, 'layers.ts') })
  await example.stage.putBot('researcher', { toolNames: ['noteFinding'] })
  offshoot = await createOffshoot({ environment: example.environment, extensions: config })
})
afterAll(async () => {
  await offshoot.close()
  await example.close()
})

test('a briefing goes down with a spawn, and what was found comes back', async () => {
  const briefed = '[context layer briefing]\nWe work on: a quieter Kling\nKnown so far: nothing'
  example.mock.answer(briefed, [
    { calls: [{ name: 'noteFinding', arguments: { finding: 'It hums.' } }] },
    'It hums a lot.',
  ])
  const caller = {
    userId: 'alice',
    parentConvoId: 'chat-1',
    parentConvoOwnerId: 'alice',
    parentConvoSpaceId: null,
    spawnDepth: 0,
  }
  const { outcome, findings } = await research(offshoot, caller, 'a quieter Kling', 'Why is Kling loud?')
  expect(outcome).toMatchObject({ state: 'completed', result: 'It hums a lot. (1 findings noted)' })
  expect(findings).toEqual(['It hums.'])
})
