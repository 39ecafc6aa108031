// Models whose answers end with a finish reason that no answer has.
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { MockLanguageModelV4 } from 'ai/test'

/** Ends that no answer has. */
const ODD_FINISHES = ['error', 'interrupted', 'other', 'unknown'] as const

/** Says half an answer, calls a tool if it is to, and ends so. */
function endsOddly(finish: string, calls: boolean): MockLanguageModelV4 {
  const call = { type: 'tool-call', toolCallId: 'call_1', toolName: 'noteRun', input: '{}' } as const
  const parts: LanguageModelV4StreamPart[] = [
    { type: 'text-start', id: 't' },
    { type: 'text-delta', id: 't', delta: 'Half an ans' },
    { type: 'text-end', id: 't' },
    ...(calls ? [call] : []),
    {
      type: 'finish',
      // `unknown` is of no provider that keeps to the types, but of some that there are.
      finishReason: { unified: finish as 'other', raw: `raw ${finish}` },
      usage: {
        inputTokens: { total: 10, noCache: 10, cacheRead: 0, cacheWrite: 0 },
        outputTokens: { total: 5, text: 5, reasoning: 0 },
      },
    },
  ]
  return new MockLanguageModelV4({ doStream: async () => ({ stream: ReadableStream.from(parts) }) })
}

/** By the finish reason, and the same after a tool call. */
export const oddModels = Object.fromEntries(
  ODD_FINISHES.flatMap((finish) => [
    [finish, endsOddly(finish, false)],
    [`${finish}-after-a-call`, endsOddly(finish, true)],
  ]),
)
