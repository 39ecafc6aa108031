// Steps whose calls can all not be run: invalid input, broken JSON, a tool that does not exist. The SDK answers each with an
// error that says what is wrong; a model that does not learn from it is stopped.
import type { StepResult, ToolSet } from 'ai'

/** One such step is a slip and two are bad luck; a model that repeats it five times in a row pays for nothing. */
export const MAX_MALFORMED_STEPS = 5

/** Whether a step has called tools, and every call was malformed: with a valid one beside it the step got something done. */
export function isMalformed(step: Pick<StepResult<ToolSet>, 'toolCalls'>): boolean {
  return step.toolCalls.length > 0 && step.toolCalls.every((call) => call.invalid === true)
}

/** Whether the last steps were all malformed, as many as may be. The steps are those of all attempts. */
export function endsMalformed(steps: readonly { malformed?: boolean }[]): boolean {
  const last = steps.slice(-MAX_MALFORMED_STEPS)
  return last.length === MAX_MALFORMED_STEPS && last.every((step) => step.malformed === true)
}
