// checkAgent and abortAgent: what a bot can do with the jobs it has started.
import { tool, type Tool } from 'ai'
import { type AbortInput, abortInputSchema, type AbortOutput } from '../contracts/abort.ts'
import { type CheckInput, checkInputSchema, type CheckOutput } from '../contracts/check.ts'
import { abortAgent } from '../operations/abort-agent.ts'
import { checkAgent } from '../operations/check-agent.ts'
import type { JobReader } from '../operations/readable-jobs.ts'
import type { Runtime } from '../runtime.ts'
import { modelInput } from './model-input.ts'

/** Who calls: asked at each call, never told by the model. */
export type WhoCalls = () => { reader: JobReader; actorId: string } | Promise<{ reader: JobReader; actorId: string }>

export function checkAgentTool(runtime: Runtime, whoCalls: WhoCalls): Tool<CheckInput, CheckOutput> {
  return tool({
    description:
      'Looks at a sub-agent that you started: its state, how far it is, and its result once it has ended. Give waitSeconds to wait for the end.',
    inputSchema: modelInput(checkInputSchema, ['jobId']),
    execute: async (input: CheckInput, { abortSignal }) =>
      checkAgent(runtime, (await whoCalls()).reader, input, abortSignal),
    toModelOutput: ({ output: { state, progress, result, error } }: { output: CheckOutput }) => ({
      type: 'json' as const,
      value: {
        state,
        progress: progress === undefined ? null : { ...progress },
        result: result ?? null,
        error: error ?? null,
      },
    }),
  })
}

export function abortAgentTool(runtime: Runtime, whoCalls: WhoCalls): Tool<AbortInput, AbortOutput> {
  return tool({
    description:
      'Stops a sub-agent that you started, and everything it has started. What it had found so far comes back as partialResult.',
    inputSchema: modelInput(abortInputSchema, ['jobId']),
    execute: async (input: AbortInput) => {
      const { reader, actorId } = await whoCalls()
      return abortAgent(runtime, reader, input, actorId)
    },
  })
}
