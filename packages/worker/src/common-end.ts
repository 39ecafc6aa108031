// How a completed job ends: with others in one commit where its end is the common one.
import { storeModelOutput, storeWholeStep } from '@offshoot/shared/db/journal'
import { mayEndTogether } from '@offshoot/shared/operations/end-together'
import type { Attempt } from './run-agent.ts'
import { abortedWith, type EndedOutcome } from './run-outcome.ts'

/** The common end, written with those of other jobs; null: this job's end needs more, or the claim is gone. */
export async function endWithOthers(attempt: Attempt, outcome: EndedOutcome): Promise<{ steps: number } | null> {
  const { runtime, job, claim, cutCalls, layers, live } = attempt
  const { ending, message, lastStep, counters } = outcome
  const { reason, result } = ending
  if (lastStep?.output === undefined || counters === undefined || result === null || !('parts' in message)) return null
  if (layers.layers.length > 0 || cutCalls.some() || !mayEndTogether(job)) return null
  const endsStep = live.takeEndOfStep()
  // The end is told right after its commit, and nothing may come behind it.
  if (!endsStep) await live.flush()
  const last = { output: lastStep.output, messages: lastStep.messages }
  const common = { job, claim, reason, result, parts: message.parts, lastStep: last, counters, endsStep }
  const end = await runtime.groups.end(common)
  if (end === null && endsStep) live.write({ type: 'finish-step' })
  return end
}

/** Any other end: the last step is stored before it. Where somebody wants the job's end by then, it is an abort. */
export async function storeLastStep(
  { runtime: { database }, claim, cutCalls }: Attempt,
  outcome: EndedOutcome,
): Promise<EndedOutcome> {
  const { lastStep, ...rest } = outcome
  if (lastStep === undefined) return outcome
  const { index, messages, malformed, output } = lastStep
  if (output !== undefined && (await storeModelOutput(database.direct, claim, output)).held) cutCalls.heldStored()
  const { abortRequested } = await storeWholeStep(database.direct, claim, index, messages, malformed)
  return abortRequested ? abortedWith(rest.ending.result) : rest
}
