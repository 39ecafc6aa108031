// readResult: the rest of what a model was shown in part.
import { tool, type Tool } from 'ai'
import {
  type ReadResultInput,
  readResultInputSchema,
  type ReadResultOutput,
  resultNotFound,
} from '../contracts/read-result.ts'
import { readOnHint } from '../contracts/truncated-result.ts'
import { readResult } from '../operations/read-result.ts'
import type { Runtime } from '../runtime.ts'
import type { WhoCalls } from './job-tools.ts'
import { modelInput } from './model-input.ts'

export function readResultTool(
  runtime: Pick<Runtime, 'database'>,
  whoCalls: WhoCalls,
): Tool<ReadResultInput, ReadResultOutput> {
  return tool({
    description:
      'Reads more of a result that was too long to be shown whole. Give the ref and the offset that the note in the shown part names.',
    inputSchema: modelInput(readResultInputSchema, ['ref']),
    execute: async (input: ReadResultInput): Promise<ReadResultOutput> =>
      (await readResult(runtime, (await whoCalls()).reader, input)) ?? resultNotFound(input.ref),
    toModelOutput: ({ output }: { output: ReadResultOutput }) =>
      'error' in output
        ? { type: 'error-text' as const, value: output.error }
        : { type: 'text' as const, value: describePage(output) },
  })
}

function describePage({
  ref,
  characters,
  offset,
  text,
  nextOffset,
}: Exclude<ReadResultOutput, { error: string }>): string {
  const end = nextOffset ?? characters
  const readOn = nextOffset === undefined ? 'This is the end.' : readOnHint(ref, nextOffset)
  return `${text}\n\n[Characters ${offset} to ${end} of ${characters}. ${readOn}]`
}
