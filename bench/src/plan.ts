// What an agent of a benchmark does. It is the agent's message, so that the mock model needs no other word of it.
import { z } from 'zod'

export interface AgentPlan {
  /** In the mock model's journal. */
  name: string
  /** Of the last step's text. */
  tokens: number
  /** Between two tokens; 0: all at once. */
  everyMs: number
  /** Model calls; each but the last one calls the tool `work`. */
  steps: number
  /** What the first step spawns and waits for. */
  children: AgentPlan[]
}

const planSchema: z.ZodType<AgentPlan> = z.lazy(() =>
  z.object({
    name: z.string(),
    tokens: z.number(),
    everyMs: z.number(),
    steps: z.number(),
    children: z.array(planSchema),
  }),
)

/** Says 20 tokens at once, unless told otherwise. */
export function planOf(name: string, more: Partial<AgentPlan> = {}): AgentPlan {
  return { name, tokens: 20, everyMs: 0, steps: 1, children: [], ...more }
}

export function readPlan(message: string): AgentPlan {
  return planSchema.parse(JSON.parse(message))
}
