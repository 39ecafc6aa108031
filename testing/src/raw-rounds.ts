// Answers of a raw model by how far the conversation has come, however often a call is made.
import type { RawModel, RawRequest, RawScript } from './raw-model.ts'

/** How many tool results a request brings: the number of the step, where each step calls one tool. */
export function roundOfRequest({ body: { input } }: RawRequest): number {
  const items: { type?: string }[] = Array.isArray(input) ? input : []
  return items.filter(({ type }) => type === 'function_call_output').length
}

/** Step n is answered by the n-th script. */
export function byRound(...scripts: RawScript[]): RawScript {
  return (reply, request) => scripts[roundOfRequest(request)]?.(reply, request)
}

/** The steps for which the model was called, in order: [0, 1, 2] when none was made again. */
export function roundsOf(raw: RawModel, message: string): number[] {
  return raw
    .requests(message)
    .map(roundOfRequest)
    .sort((a, b) => a - b)
}
