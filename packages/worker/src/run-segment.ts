// One segment of a run: one `generateText` call of the AI SDK, whose own loop makes steps until it ends, a spawn ends it, or
// the steps are used up. What the model and the tools say is kept and shown as it comes (shown-steps.ts).
import { generateText, isStepCount, type ModelMessage, type StepResult, type ToolSet, wrapLanguageModel } from 'ai'
import type { StoredInboxItem } from '@offshoot/shared/db/journal'
import type { Config } from '@offshoot/shared/config'
import { withLimit } from '@offshoot/shared/with-limit'
import { type Journal, STORED_FINISHES } from './journal.ts'
import type { LiveWriter } from './live-writer.ts'
import { endsMalformed, isMalformed } from './malformed-calls.ts'
import { UnusableFinishError } from './model-errors.ts'
import { offeredTools } from './offered-tools.ts'
import { untilAborted } from './pause.ts'
import { type RepeatWatch, watchRepeats } from './repeated-calls.ts'
import type { ResolvedAgent } from './resolve-agent.ts'
import type { RunState } from './run-state.ts'
import type { StopSwitch } from './run-stop.ts'
import { showSteps } from './shown-steps.ts'

/** What a run that is stopped may take to keep what its model has said last; longer than its source may (model-output.ts). */
const LAST_WORDS_MS = 150

export interface SegmentDependencies {
  config: Config
  agent: ResolvedAgent
  journal: Journal
  live: LiveWriter
  stopSwitch: StopSwitch
  state: RunState
  /** Reads the inbox items that wait for the next step. */
  takeInbox(): Promise<StoredInboxItem[]>
  /** Whether the inbox had unread items when the last step became whole. */
  noteUnread(unread: boolean): void
  /** True once the process wants to end: the next step boundary stops the run. */
  isDraining(): boolean
}

export type SegmentEnd =
  /** Look at the state: its last step says what comes next. `unstored`: that step, which is whole and not stored as such. */
  { kind: 'steps-made'; unstored?: WholeStep } | { kind: 'failed'; error: unknown }

export interface WholeStep {
  index: number
  messages: ModelMessage[]
  malformed: boolean
}

export async function runSegment(segment: SegmentDependencies, messages: ModelMessage[]): Promise<SegmentEnd> {
  const { config, agent, journal, stopSwitch, state } = segment
  const firstIndex = state.nextIndex()
  const finished: StepResult<ToolSet>[] = []
  const steps = storeSteps(segment, firstIndex)
  const shown = showSteps(segment)

  const repeats: RepeatWatch = {
    stored: state,
    stepIndex: () => journal.stepIndex(),
    onRepeat: ({ stepIndex, toolName }) => journal.recordOnce('repeated-calls', { step: stepIndex, toolName }),
  }

  const stepsSoFar = (made: readonly StepResult<ToolSet>[]) => [
    ...state.steps.filter((step) => step.index < firstIndex),
    ...made.map((step) => ({ malformed: isMalformed(step) })),
  ]

  const running = generateText({
    model: wrapLanguageModel({
      model: agent.model as Parameters<typeof wrapLanguageModel>[0]['model'],
      middleware: journal.middleware,
    }),
    instructions: agent.instructions,
    messages,
    tools: journal.wrapTools(watchRepeats(agent.tools, repeats)),
    ...agent.settings,
    providerOptions: agent.providerOptions,
    maxRetries: 0,
    abortSignal: stopSwitch.signal,
    timeout: { stepMs: config.MODEL_STEP_MS, toolMs: config.TOOL_TIMEOUT_MS },
    stopWhen: [isStepCount(state.maxSteps - firstIndex), ({ steps: made }) => endsMalformed(stepsSoFar(made))],
    onLanguageModelCallEnd: shown.callEnd,
    onToolExecutionEnd({ toolOutput }) {
      // What a stopped run's tool throws is the stop's doing: the call counts as cut.
      if (toolOutput.type === 'tool-result' || !stopSwitch.signal.aborted) shown.toolEnd(toolOutput)
    },
    onStepEnd: (step) => void finished.push(step),
    async prepareStep({ stepNumber, steps: finishedSteps, messages: stepMessages }) {
      // Not when the SDK calls a step ended: one whose time was up has not, and is not stored as whole.
      shown.end()
      await steps.store(finishedSteps)
      if (segment.isDraining() && stepNumber > 0) stopSwitch.stop({ kind: 'drain' })
      stopSwitch.signal.throwIfAborted()
      const index = firstIndex + stepNumber
      const playback = stepNumber === 0 ? state.stepToPlayBack() : undefined
      const inbox = playback === undefined ? await segment.takeInbox() : []
      state.noteInbox(index, inbox)
      const input = [...stepMessages, ...inbox.map(inboxMessage)]
      const activeTools = toolsOfStep(agent, input, playback !== undefined)
      // The last allowed step runs with tools off, so that a text comes.
      const isLast = index === state.maxSteps - 1 && activeTools.length > 0
      shown.begin({ index, playedBack: playback !== undefined, activeTools, withoutTools: isLast })
      journal.begin({
        index,
        inbox,
        ...(playback === undefined ? {} : { playback: { step: playback, toolCalls: state.toolCalls } }),
        onSaid: shown.part,
        onCalls: shown.calls,
        onToolValue: shown.toolValue,
      })
      return { messages: input, activeTools, ...(isLast ? { toolChoice: 'none' as const } : {}) }
    },
  })

  try {
    await untilAborted(running, stopSwitch.signal)
    shown.end()
    const unstored = await steps.storeAllButLast(finished)
    return { kind: 'steps-made', ...(unstored === undefined ? {} : { unstored }) }
  } catch (error) {
    await withLimit(running, LAST_WORDS_MS).catch(() => undefined)
    return { kind: 'failed', error }
  }
}

/** Stores the steps of a segment as whole, each once. */
function storeSteps({ journal, live, state, noteUnread }: SegmentDependencies, firstIndex: number) {
  let stored = 0

  function wholeStep(step: StepResult<ToolSet>): WholeStep {
    if (!STORED_FINISHES.has(step.finishReason))
      throw new UnusableFinishError(
        `the model's stream ended with finish reason "${step.rawFinishReason ?? step.finishReason}"`,
      )
    return { index: firstIndex + stored, messages: step.response.messages, malformed: isMalformed(step) }
  }

  /** Those that the SDK has finished since the last time. */
  async function store(steps: readonly StepResult<ToolSet>[]): Promise<void> {
    for (const step of steps.slice(stored)) {
      const { index, messages, malformed } = wholeStep(step)
      // A later attempt shows none of a whole step again, and takes back what comes behind the last end of a step.
      await live.flush()
      noteUnread(await journal.storeWhole(index, messages, malformed))
      state.addWholeStep(index, step)
      stored += 1
    }
  }

  return {
    store,
    /** The last step is left to whoever goes on: it mostly ends the job, and is stored with that. */
    async storeAllButLast(steps: readonly StepResult<ToolSet>[]): Promise<WholeStep | undefined> {
      await store(steps.slice(0, -1))
      const last = steps.at(-1)
      if (last === undefined || stored === steps.length) return undefined
      const unstored = wholeStep(last)
      state.addWholeStep(unstored.index, last)
      return unstored
    },
  }
}

/** A step that is played back may have called any tool; another one is offered those that are there. */
function toolsOfStep({ tools, activeTools }: ResolvedAgent, input: readonly ModelMessage[], playedBack: boolean) {
  const offered = offeredTools(tools, input)
  return activeTools === undefined || playedBack ? offered : offered.filter((name) => activeTools.includes(name))
}

export function inboxMessage(item: StoredInboxItem): ModelMessage {
  return { role: 'user', content: item.parts.map((part) => ({ type: 'text', text: part.text })) }
}
