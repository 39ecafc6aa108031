import { jsonSchema, type Tool, type ToolExecutionOptions } from 'ai'
import { expect, test } from 'vitest'
import { getToolCall } from '@offshoot/shared/tool-call'
import { toolCallOf, withToolCall } from './tool-call-context.ts'

const STEP = { jobId: 'job', generation: 1, index: 0 }
const keyOf = (step: Partial<typeof STEP>, toolCallId: string) =>
  toolCallOf({ ...STEP, ...step }, toolCallId).idempotencyKey

test('the key of a call is the same each time, and of no other call', () => {
  const keys = [
    keyOf({}, 'call_0'),
    keyOf({}, 'call_1'),
    keyOf({ index: 1 }, 'call_0'),
    keyOf({ jobId: 'job2' }, 'call_0'),
    // A step that a retry makes again has other calls, which may have the same ids.
    keyOf({ generation: 2 }, 'call_0'),
    // No two of the parts run into each other.
    keyOf({ index: 10 }, ''),
    keyOf({ index: 1 }, '0'),
  ]
  expect(new Set(keys).size).toBe(keys.length)
  expect(keyOf({}, 'call_0')).toBe(keys[0])
  expect(keys[0]).toMatch(/^[0-9a-f]{64}$/)
})

test('outside a call there is none, and the error says where there is one', () => {
  expect(() => getToolCall()).toThrow(/only inside the `execute` of a tool/)
})

function run(execute: NonNullable<Tool['execute']>): unknown {
  const tool = withToolCall({ inputSchema: jsonSchema<object>({ type: 'object' }), execute }, (toolCallId) =>
    toolCallOf(STEP, toolCallId),
  )
  return tool.execute?.({}, { toolCallId: 'call_0', messages: [], context: {} } as ToolExecutionOptions<unknown>)
}

test('a plain tool knows its call, also after it has waited', async () => {
  const result = run(async () => {
    await Promise.resolve()
    return getToolCall()
  })
  expect(await result).toEqual(toolCallOf(STEP, 'call_0'))
})

test('a tool that streams knows its call for every value, and when it is ended early', async () => {
  const seen: string[] = []
  const values = run(async function* () {
    try {
      for (;;) yield getToolCall().toolCallId
    } finally {
      seen.push(`ended ${getToolCall().toolCallId}`)
    }
  })
  for await (const value of values as AsyncIterable<string>) {
    seen.push(value)
    if (seen.length === 3) break
  }
  expect(seen).toEqual(['call_0', 'call_0', 'call_0', 'ended call_0'])
})
