import { claimNext, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import type { ModelMessage } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { loadSteps, loadToolCalls, storeModelOutput, storeToolEnd, storeWholeStep } from '../src/db/journal.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage()
  await stage.putBot('writer')
})
afterAll(() => stage.close())

test('STATE-19: what goes back to a model keeps the order of its keys', async () => {
  const { database } = stage.runtime
  const job = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice')).id)
  const claim = { jobId: job.id, token: job.claimToken ?? '' }
  const unsorted = { zebra: 1, b: { y: 2, aa: 3 }, a: 4 }
  const messages: ModelMessage[] = [
    { role: 'assistant', content: [{ type: 'tool-call', toolCallId: 'c1', toolName: 'look', input: unsorted }] },
  ]
  const usage = { inputTokens: 1, outputTokens: 1, reasoningTokens: 0, totalTokens: 2 }
  const parts = [
    {
      type: 'tool-call' as const,
      toolCallId: 'c1',
      toolName: 'look',
      input: '{}',
      providerMetadata: { openai: unsorted },
    },
  ]
  await storeModelOutput(database, claim, {
    index: 0,
    generation: 1,
    parts,
    usage,
    finishReason: 'tool-calls',
    elapsedMs: 1,
    inboxSeqs: [],
  })
  await storeToolEnd(database, claim, {
    stepIndex: 0,
    toolCallId: 'c1',
    toolName: 'look',
    outcome: { output: unsorted },
  })
  await storeWholeStep(database, claim, 0, messages)
  const [step] = await loadSteps(database, job.id)
  const [call] = await loadToolCalls(database, job.id)
  expect(JSON.stringify(step?.responseMessages)).toBe(JSON.stringify(messages))
  expect(JSON.stringify(step?.modelOutput)).toBe(JSON.stringify(parts))
  expect(JSON.stringify(call?.outcome)).toBe(JSON.stringify({ output: unsorted }))
})
