// What a run has come to, as a value: how its job ends, or why it goes on elsewhere or later.
import { agentMessageParts, lastStepText, stepText } from '@offshoot/shared/agent-message'
import type { TerminalState } from '@offshoot/shared/contracts/job-state'
import { type Reason, REASONS } from '@offshoot/shared/contracts/reason'
import type { Ending } from '@offshoot/shared/db/agent-jobs'
import type { Counters, ModelOutput, StoredStep } from '@offshoot/shared/db/journal'
import type { FinalMessage } from '@offshoot/shared/operations/finish-agent'
import { describeWithdrawn } from '@offshoot/shared/operations/prepare-spawn'
import { BudgetBusyError, BudgetSpentError } from './call-budget.ts'
import { endsMalformed, MAX_MALFORMED_STEPS } from './malformed-calls.ts'
import { classifyModelError, TryLaterError } from './model-errors.ts'
import { UnresolvableAgentError } from './resolve-agent.ts'
import type { Attempt } from './run-agent.ts'
import type { WholeStep } from './run-segment.ts'
import type { RunState } from './run-state.ts'
import type { RunStop } from './run-stop.ts'

export interface EndedOutcome {
  kind: TerminalState
  ending: Ending
  message: FinalMessage
  /** The last step of a completed job, which is not stored as whole yet; `output`: nor is what the model said. */
  lastStep?: WholeStep & { output?: ModelOutput | undefined }
  /** What the job had cost before that output. */
  counters?: Counters
}

export type RunOutcome =
  | EndedOutcome
  | { kind: 'waiting'; liveChildren: number }
  /** The step is tried again later; the job shall wait without holding anything. */
  | {
      kind: 'retry-later'
      afterMs: number
      reason: Reason
      /** The step has failed, and may only so often. */ counted: boolean
    }
  | { kind: 'handed-back' }
  /** The job is somebody else's now; nothing may be written. `result`: what was said and not stored. */
  | { kind: 'lost'; because: string; result: string | null }

/** How often in a row a step may be put off. */
const MAX_STEP_RETRIES = 10

/** @throws what is another error */
export function unresolvable(state: RunState, error: unknown): RunOutcome {
  if (!(error instanceof UnresolvableAgentError)) throw error
  const { reason, message } = error
  return ended(state, { state: 'failed', reason, result: null, error: message, partial: false })
}

/** What the last step's finish reason makes of the job. */
export function endingOf(step: StoredStep, state: RunState): Ending {
  const text = stepText(step)
  const result = text === '' ? null : text
  const fail = (reason: Reason): Ending => ({
    state: 'failed',
    reason,
    result,
    error: REASONS[reason].sentence,
    partial: result !== null,
  })
  if (step.finishReason === 'length') return fail('output_limit')
  if (step.finishReason === 'content-filter') return fail('content_filter')
  if (endsMalformed(state.steps)) {
    const { sentence } = REASONS.invalid_tool_input
    return { ...fail('invalid_tool_input'), error: `${sentence} (${MAX_MALFORMED_STEPS} steps in a row)` }
  }
  if (result === null) return fail('empty_output')
  const usedAll = state.steps.length >= state.maxSteps && state.steps.length > 1
  return { state: 'completed', reason: usedAll ? 'step_limit' : 'completed', result, partial: false }
}

export function ended(state: RunState, ending: Ending): EndedOutcome {
  return {
    kind: ending.state,
    ending,
    message:
      ending.state === 'completed'
        ? { parts: agentMessageParts(state.steps, state.toolCalls) }
        : { cutText: state.cutText() },
  }
}

/** A run that was stopped: by its own reason, whatever error the stop has caused. */
export function stoppedOutcome({ job }: Attempt, state: RunState, stop: RunStop): RunOutcome {
  const partial = partialResult(state)
  switch (stop.kind) {
    case 'claim-lost':
      return { kind: 'lost', because: stop.because, result: state.cutText() || null }
    case 'drain':
      return { kind: 'handed-back' }
    case 'deadline':
      return ended(state, {
        state: 'failed',
        reason: 'timeout_total',
        ...partial,
        error: `${REASONS.timeout_total.sentence} (${job.timeoutMs / 1_000} s)`,
      })
    case 'abort-wish':
      // Which wish it was stands in the row; process-delivery fills it in.
      return ended(state, {
        state: 'aborted',
        reason: 'aborted_by_user',
        ...partial,
        error: REASONS.aborted_by_user.sentence,
      })
    case 'right-withdrawn':
      return ended(state, {
        state: 'failed',
        reason: 'not_authorized',
        ...partial,
        error: describeWithdrawn(job.ownerId),
      })
    case 'call-unknown':
      return ended(state, {
        state: 'failed',
        reason: 'worker_lost',
        ...partial,
        error: `${REASONS.worker_lost.sentence} The outcome of its call of ${stop.toolName} is unknown, and that tool lets no job go on then.`,
      })
  }
}

export function failedOutcome({ runtime, job, msLeft }: Attempt, state: RunState, error: unknown): RunOutcome {
  if (error instanceof BudgetBusyError)
    return { kind: 'retry-later', afterMs: error.afterMs, reason: 'budget', counted: false }
  if (error instanceof BudgetSpentError)
    return ended(state, { state: 'failed', reason: 'budget', ...partialResult(state), error: error.message })
  const failure = classifyModelError(error)
  if (error instanceof TryLaterError && error.afterMs < msLeft() && job.stepRetries < MAX_STEP_RETRIES) {
    return { kind: 'retry-later', afterMs: error.afterMs, reason: failure.reason, counted: true }
  }
  runtime.logger.warn({ jobId: job.id, reason: failure.reason, detail: failure.detail }, 'the run failed')
  const { reason, sentence, detail } = failure
  return ended(state, { state: 'failed', reason, ...partialResult(state), error: sentence, errorDetail: detail })
}

/** A run that is complete, whose job somebody wanted to end before it was stored. */
export function abortedWith(result: string | null): EndedOutcome {
  const { sentence: error } = REASONS.aborted_by_user
  const ending: Ending = { state: 'aborted', reason: 'aborted_by_user', result, partial: result !== null, error }
  return { kind: 'aborted', ending, message: { cutText: '' } }
}

/** What there is when a run ends early: the text of the cut step, else that of the last whole one. */
function partialResult(state: RunState): { result: string | null; partial: boolean } {
  const cut = state.cutText()
  const result = cut === '' ? lastStepText(state.steps) : cut
  return { result, partial: result !== null || state.steps.length > 0 }
}
