// What an attempt knows of its job: the stored steps, their tool calls and inbox items, and the step under way. The
// decision what comes next is made from here alone, so it is the same for a fresh job, after a wait and after a crash.
import type { ModelMessage, StepResult, ToolSet } from 'ai'
import { type OpenCall, openCalls, stepText } from '@offshoot/shared/agent-message'
import type { StoredInboxItem, StoredStep, StoredToolCall } from '@offshoot/shared/db/journal'
import { endsMalformed, isMalformed } from './malformed-calls.ts'

export type NextMove =
  | { kind: 'answer-calls'; step: StoredStep; calls: OpenCall[] }
  | { kind: 'call-model' }
  | { kind: 'end'; step: StoredStep }

export interface RunState {
  readonly steps: readonly StoredStep[]
  readonly toolCalls: readonly StoredToolCall[]
  readonly maxSteps: number
  next(unreadInbox: boolean): NextMove
  /** The index of the step that a new segment begins with. */
  nextIndex(): number
  /** The last step, when its output is stored and its tool results are not all. */
  stepToPlayBack(): StoredStep | undefined
  /** Which inbox items the prompt of a step had. */
  noteInbox(index: number, inbox: readonly StoredInboxItem[]): void
  /** A step's output begins: the text so far belonged to the one before. */
  beginText(): void
  addText(text: string): void
  addToolCall(call: StoredToolCall): void
  addWholeStep(index: number, step: StepResult<ToolSet>): void
  /** The last step, whose output is not stored, counts as cut. */
  cutLast(): void
  /** Adds the answers of calls that were open to a whole step. */
  answerCalls(step: StoredStep, messages: ModelMessage[]): void
  /** What the job adds to the convo's history: for each whole step its inbox items, then its messages. */
  messages(): ModelMessage[]
  /** The text of a step that was cut. */
  cutText(): string
}

/** Finish reasons after which the SDK runs tools; some endpoints say `stop` although they call tools. */
const RUNNING_FINISHES: ReadonlySet<string | null> = new Set(['tool-calls', 'stop'])

export function createRunState(stored: {
  steps: StoredStep[]
  toolCalls: StoredToolCall[]
  inbox: StoredInboxItem[]
  maxSteps: number
  inboxMessage(item: StoredInboxItem): ModelMessage
}): RunState {
  const steps = [...stored.steps]
  const toolCalls = [...stored.toolCalls]
  const inboxOf = new Map<number, StoredInboxItem[]>()
  for (const item of stored.inbox) {
    if (item.consumedAtStep !== null)
      inboxOf.set(item.consumedAtStep, [...(inboxOf.get(item.consumedAtStep) ?? []), item])
  }
  let text: string[] = []

  const stepToPlayBack = () => {
    const last = steps.at(-1)
    return last?.responseMessages === null ? last : undefined
  }

  return {
    steps,
    toolCalls,
    maxSteps: stored.maxSteps,
    next(unreadInbox) {
      const last = steps.at(-1)
      if (last === undefined || last.responseMessages === null) return { kind: 'call-model' }
      const calls = openCalls(last.responseMessages)
      if (calls.length > 0) return { kind: 'answer-calls', step: last, calls }
      if (steps.length >= stored.maxSteps || endsMalformed(steps)) return { kind: 'end', step: last }
      const goesOn = unreadInbox || hasCalls(last.responseMessages)
      return goesOn && RUNNING_FINISHES.has(last.finishReason) ? { kind: 'call-model' } : { kind: 'end', step: last }
    },
    nextIndex: () => stepToPlayBack()?.index ?? (steps.at(-1)?.index ?? -1) + 1,
    stepToPlayBack,
    noteInbox(index, inbox) {
      if (inbox.length > 0) inboxOf.set(index, [...inbox])
    },
    beginText() {
      text = []
    },
    addText: (delta) => void text.push(delta),
    addToolCall(call) {
      const present = toolCalls.findIndex(
        (each) => each.stepIndex === call.stepIndex && each.toolCallId === call.toolCallId,
      )
      if (present === -1) toolCalls.push(call)
      else toolCalls[present] = call
    },
    addWholeStep(index, step) {
      const whole: StoredStep = {
        index,
        finishReason: step.finishReason,
        usage: null,
        modelOutput: [],
        responseMessages: step.response.messages,
        malformed: isMalformed(step),
      }
      if (steps.at(-1)?.index === index) steps[steps.length - 1] = whole
      else steps.push(whole)
      text = []
    },
    cutLast() {
      const last = steps.pop()
      if (last !== undefined) text = [stepText(last)]
    },
    answerCalls(step, messages) {
      step.responseMessages = messages
    },
    messages() {
      const before = steps.filter((step) => step.responseMessages !== null)
      const played = stepToPlayBack()
      const list = before.flatMap((step) => [
        ...(inboxOf.get(step.index) ?? []).map(stored.inboxMessage),
        ...(step.responseMessages ?? []),
      ])
      return played === undefined ? list : [...list, ...(inboxOf.get(played.index) ?? []).map(stored.inboxMessage)]
    },
    cutText: () => text.join(''),
  }
}

/** Whether a step has called tools of ours, whose results are for the next step. */
function hasCalls(responseMessages: readonly ModelMessage[]): boolean {
  return responseMessages.some(
    (message) =>
      message.role === 'assistant' &&
      typeof message.content !== 'string' &&
      message.content.some((part) => part.type === 'tool-call' && part.providerExecuted !== true),
  )
}
