// Lets a tool know which call it runs for, also in the body of a tool that streams, which runs in whoever asks for the next value.
import { createHash } from 'node:crypto'
import type { Tool } from 'ai'
import { runWithToolCall, type ToolCall } from '@offshoot/shared/tool-call'

/**
 * The key of a call is made of what a step keeps over crashes: its job, its number and the generation that made it (a retry
 * may make a step again, and endpoints give its calls the same ids), and the call's id.
 */
export function toolCallOf(step: { jobId: string; generation: number; index: number }, toolCallId: string): ToolCall {
  const { jobId, generation, index } = step
  const idempotencyKey = createHash('sha256')
    .update(JSON.stringify([jobId, generation, index, toolCallId]))
    .digest('hex')
  return { jobId, step: index, toolCallId, idempotencyKey }
}

/** The tool, with what `callOf` answers around each of its calls. */
export function withToolCall(tool: Tool, callOf: (toolCallId: string) => ToolCall): Tool {
  const inner = tool.execute
  if (inner === undefined) return tool
  const execute: typeof inner = (input: unknown, options) => {
    const call = callOf(options.toolCallId)
    const result: unknown = runWithToolCall(call, () => inner(input, options))
    return isAsyncIterable(result) ? iterateWithin(call, result) : result
  }
  return Object.assign({ ...tool }, { execute })
}

function iterateWithin(call: ToolCall, values: AsyncIterable<unknown>): AsyncIterable<unknown> {
  return {
    [Symbol.asyncIterator]() {
      const iterator = values[Symbol.asyncIterator]()
      return {
        next: () => runWithToolCall(call, () => iterator.next()),
        return: async (value?: unknown) =>
          (await runWithToolCall(call, () => iterator.return?.(value))) ?? { done: true, value },
      }
    },
  }
}

export function isAsyncIterable(value: unknown): value is AsyncIterable<unknown> {
  return typeof value === 'object' && value !== null && Symbol.asyncIterator in value
}
