import { jsonSchema, type ModelMessage, type Tool } from 'ai'
import { expect, test } from 'vitest'
import type { CheckInput, CheckOutput } from '../contracts/check.ts'
import { shortWhenUnchanged } from './unchanged-answer.ts'

const INPUT: CheckInput = { jobId: 'job', includePartial: false, waitSeconds: 0 }
const running = (step: number): CheckOutput => ({ jobId: 'job', state: 'running', progress: { step, maxSteps: 25 } })
const ENDED: CheckOutput = { jobId: 'job', state: 'completed', result: 'a long poem' }

/** A conversation in which the model looks, one time after the other, and what it reads. */
function conversation() {
  const messages: ModelMessage[] = []
  let current: CheckOutput = running(0)
  const inner: Tool<CheckInput, CheckOutput> = {
    inputSchema: jsonSchema<CheckInput>({ type: 'object' }),
    execute: async () => current,
    toModelOutput: ({ output: { state, progress, result } }) => ({
      type: 'json',
      value: { state, progress: progress === undefined ? null : { ...progress }, result: result ?? null },
    }),
  }
  const tool = shortWhenUnchanged(inner)
  return {
    messages,
    async look(output: CheckOutput, input: CheckInput = INPUT): Promise<unknown> {
      current = output
      // The endpoint uses one id for all calls.
      const call = { toolCallId: 'call_0', toolName: 'checkAgent' }
      const answer = await tool.execute?.(input, { ...call, messages, context: {} })
      const read = await tool.toModelOutput?.({ ...call, input, output: answer as CheckOutput })
      if (read?.type !== 'json') throw new Error('no json')
      messages.push(
        { role: 'assistant', content: [{ type: 'tool-call', ...call, input }] },
        { role: 'tool', content: [{ type: 'tool-result', ...call, output: read }] },
      )
      return read.value
    },
  }
}

const FULL = { state: 'running', progress: { step: 0, maxSteps: 25 }, result: null }
const short = (lookAgainSeconds: number) => ({
  state: 'running',
  unchanged: true,
  lookAgainSeconds,
  note: `Nothing has changed since you last looked. Look again in ${lookAgainSeconds} s, or give waitSeconds to wait for the end.`,
})

test('COST-6: an unchanged answer is short and says when to look again, later each time, up to a minute', async () => {
  const { look } = conversation()
  expect(await look(running(0))).toEqual(FULL)
  for (const seconds of [10, 20, 40, 60, 60]) expect(await look(running(0))).toEqual(short(seconds))
})

test('COST-6: a changed answer is whole, and what follows it begins anew', async () => {
  const { look } = conversation()
  await look(running(0))
  await look(running(0))
  expect(await look(running(1))).toEqual({ ...FULL, progress: { step: 1, maxSteps: 25 } })
  expect(await look(running(1))).toEqual(short(10))
})

test('COST-6: the result of an ended job is read once', async () => {
  const { look } = conversation()
  await look(running(0))
  expect(await look(ENDED)).toEqual({ state: 'completed', progress: null, result: 'a long poem' })
  const note = 'The job had ended when you last looked; there is nothing new.'
  expect(await look(ENDED)).toEqual({ state: 'completed', unchanged: true, note })
  expect(await look(ENDED)).toEqual({ state: 'completed', unchanged: true, note })
})

test('COST-6: what was read of another job counts for nothing, and what is out of the conversation neither', async () => {
  const { look, messages } = conversation()
  await look(running(0), { ...INPUT, jobId: 'other' })
  expect(await look(running(0))).toEqual(FULL)
  messages.splice(0)
  expect(await look(running(0))).toEqual(FULL)
})
