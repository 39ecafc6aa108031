// checkAgent and abortAgent: what a bot can do with the jobs it has started.
import { tool, type Tool } from 'ai'
import { shortenedResult } from '../agent-views.ts'
import { type AbortInput, abortInputSchema, type AbortOutput } from '../contracts/abort.ts'
import { type CheckInput, checkInputSchema, type CheckOutput } from '../contracts/check.ts'
import { MAX_RESULT_LENGTH } from '../contracts/truncated-result.ts'
import { abortAgent } from '../operations/abort-agent.ts'
import { checkAgent } from '../operations/check-agent.ts'
import type { JobReader } from '../operations/readable-jobs.ts'
import type { Runtime } from '../runtime.ts'
import { modelInput } from './model-input.ts'
import { shortWhenUnchanged } from './unchanged-answer.ts'

/** Who calls: asked at each call, never told by the model. */
export type WhoCalls = () => { reader: JobReader; actorId: string } | Promise<{ reader: JobReader; actorId: string }>

export interface JobToolOptions {
  /** Whether the model that gets the tool also has `readResult`. */
  canReadOn: boolean
}

export function checkAgentTool(
  runtime: Runtime,
  whoCalls: WhoCalls,
  { canReadOn }: JobToolOptions,
): Tool<CheckInput, CheckOutput> {
  const fullAnswer: Tool<CheckInput, CheckOutput> = tool({
    description:
      'Looks at a sub-agent that you started: its state, how far it is, and its result once it has ended. Give waitSeconds to wait for the end.',
    inputSchema: modelInput(checkInputSchema, ['jobId']),
    execute: async (input: CheckInput, { abortSignal }) => {
      const { reader } = await whoCalls()
      const output = await checkAgent(runtime, reader, input, abortSignal)
      return 'runningJobId' in reader ? keptByParent(output) : output
    },
    toModelOutput: ({ output: { jobId, state, progress, result, error } }: { output: CheckOutput }) => ({
      type: 'json' as const,
      value: {
        state,
        progress: progress === undefined ? null : { ...progress },
        result: result === undefined ? null : shortenedResult(jobId, result, canReadOn).result,
        error: error ?? null,
      },
    }),
  })
  return shortWhenUnchanged(fullAnswer)
}

/** What a running job keeps of an answer: its journal must not hold its whole subtree. */
function keptByParent({ messages, ...answer }: CheckOutput): CheckOutput {
  const { jobId, result } = answer
  const short = { ...answer, ...(result === undefined ? {} : shortenedResult(jobId, result)) }
  if (messages === undefined || JSON.stringify(messages).length > MAX_RESULT_LENGTH) return short
  return { ...short, messages }
}

export function abortAgentTool(
  runtime: Runtime,
  whoCalls: WhoCalls,
  { canReadOn }: JobToolOptions,
): Tool<AbortInput, AbortOutput> {
  return tool({
    description:
      'Stops a sub-agent that you started, and everything it has started. What it had found so far comes back as partialResult.',
    inputSchema: modelInput(abortInputSchema, ['jobId']),
    execute: async (input: AbortInput) => {
      const { reader, actorId } = await whoCalls()
      const output = await abortAgent(runtime, reader, input, actorId)
      return 'runningJobId' in reader ? withShortPartial(output, true) : output
    },
    toModelOutput: ({ output }: { output: AbortOutput }) => ({
      type: 'json' as const,
      value: withShortPartial(output, canReadOn),
    }),
  })
}

function withShortPartial(output: AbortOutput, canReadOn: boolean): AbortOutput {
  const { jobId, partialResult } = output
  if (partialResult === undefined) return output
  return { ...output, partialResult: shortenedResult(jobId, partialResult, canReadOn).result }
}
