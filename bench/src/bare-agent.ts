// The agent of the baselines: what a product would write without Offshoot, one `streamText`. It has the tools that its plan
// calls; a sub-agent runs inside the tool call.
import { createOpenAI } from '@ai-sdk/openai'
import { isStepCount, streamText, tool, type ToolSet } from 'ai'
import { z } from 'zod'
import { type AgentPlan, readPlan } from './plan.ts'

export interface BareRun {
  /** Gets each delta. */
  onText?: (delta: string) => void
  signal?: AbortSignal
}

export type BareAgent = (message: string, run?: BareRun) => Promise<string>

export function createBareAgent(modelUrl: string): BareAgent {
  const openai = createOpenAI({ baseURL: `${modelUrl}/v1`, apiKey: 'mock' })

  async function runBareAgent(message: string, { onText, signal }: BareRun = {}): Promise<string> {
    const result = streamText({
      model: openai('gpt-5'),
      instructions: 'You are agent.',
      messages: [{ role: 'user', content: message }],
      providerOptions: { openai: { store: false } },
      onError: () => undefined,
      ...(signal === undefined ? {} : { abortSignal: signal }),
      ...toolsFor(readPlan(message)),
    })
    let text = ''
    for await (const part of result.stream) {
      if (part.type === 'error') throw part.error
      if (part.type !== 'text-delta') continue
      text += part.text
      onText?.(part.text)
    }
    return text
  }

  function toolsFor({ steps, children }: AgentPlan): { tools?: ToolSet; stopWhen?: ReturnType<typeof isStepCount> } {
    if (steps === 1 && children.length === 0) return {}
    return { tools: { work, spawnAgent }, stopWhen: isStepCount(steps + 1) }
  }

  const work = tool({ inputSchema: z.object({ text: z.string() }), execute: ({ text }) => `worked on ${text}` })
  const spawnAgent = tool({
    inputSchema: z.object({ bot: z.object({}), message: z.string() }),
    execute: ({ message }) => runBareAgent(message),
  })
  return runBareAgent
}
