// How a completed job ends: with others in one commit where its end is the common one.
import { storeWholeStep } from '@offshoot/shared/db/journal'
import { mayEndTogether } from '@offshoot/shared/operations/end-together'
import type { Attempt, EndedOutcome } from './run-agent.ts'

/** The common end, written with those of other jobs; null: this job's end needs more, or the claim is gone. */
export async function endWithOthers(attempt: Attempt, outcome: EndedOutcome): Promise<{ steps: number } | null> {
  const { runtime, job, claim, cutCalls, layers, live } = attempt
  const { ending, message, lastStep, counters } = outcome
  const { reason, result } = ending
  if (lastStep === undefined || counters === undefined || result === null || !('parts' in message)) return null
  if (layers.layers.length > 0 || cutCalls.tokens() !== undefined || !mayEndTogether(job)) return null
  const endsStep = live.takeEndOfStep()
  // The end is told right after its commit, and nothing may come behind it.
  if (!endsStep) await live.flush()
  const common = { job, claim, reason, result, parts: message.parts, lastStep, counters, endsStep }
  const end = await runtime.groups.end(common)
  if (end === null && endsStep) live.write({ type: 'finish-step' })
  return end
}

/** Any other end: the last step becomes whole before it. */
export async function storeLastStep({ runtime, claim }: Attempt, outcome: EndedOutcome): Promise<EndedOutcome> {
  const { lastStep, ...rest } = outcome
  if (lastStep === undefined) return outcome
  const { index, messages, malformed } = lastStep
  await storeWholeStep(runtime.database.direct, claim, index, messages, malformed)
  return rest
}
