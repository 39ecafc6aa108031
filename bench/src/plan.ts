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
  /** The index of a step that is answered only once the model is told to release the agent; null: none is. */
  heldStep: number | null
  /** The first token comes together with the text's beginning, not `everyMs` after it. */
  firstAtOnce: boolean
  /** Each token is the instant at which it was sent. */
  stamped: boolean
}

const planSchema: z.ZodType<AgentPlan> = z.lazy(() =>
  z.object({
    name: z.string(),
    tokens: z.number(),
    everyMs: z.number(),
    steps: z.number(),
    children: z.array(planSchema),
    heldStep: z.number().nullable(),
    firstAtOnce: z.boolean(),
    stamped: z.boolean(),
  }),
)

const DEFAULTS = { tokens: 20, everyMs: 0, steps: 1, children: [], heldStep: null, firstAtOnce: false, stamped: false }

/** Says 20 tokens at once, unless told otherwise. */
export function planOf(name: string, more: Partial<AgentPlan> = {}): AgentPlan {
  return { ...DEFAULTS, name, ...more }
}

export function readPlan(message: string): AgentPlan {
  return planSchema.parse(JSON.parse(message))
}

/** An instant that processes of one machine share, in milliseconds with fractions. */
export function sharedNow(): number {
  return performance.timeOrigin + performance.now()
}

/** How long each token of a stamped text was on its way, in milliseconds. */
export function delaysOf(text: string, receivedAt: number): number[] {
  const stamps = text.split(' ').filter((stamp) => stamp !== '')
  return stamps.map((stamp) => receivedAt - Number(stamp))
}
