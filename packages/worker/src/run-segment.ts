// One segment of a run: one `streamText` call of the AI SDK, whose own loop makes steps until it ends, a spawn ends it, or
// the steps are used up. Its stream is read here in one pass: frames to viewers, text and steps into the state.
import {
  isStepCount,
  type ModelMessage,
  type StepResult,
  // The same engine, for one reader: it keeps no copy of the stream for others.
  experimental_streamTextLowMemory as streamText,
  type TextStreamPart,
  toUIMessageChunk,
  type ToolSet,
  wrapLanguageModel,
} from 'ai'
import type { StoredInboxItem, StoredToolCall } from '@offshoot/shared/db/journal'
import type { Config } from '@offshoot/shared/config'
import { type Journal, STORED_FINISHES } from './journal.ts'
import type { LiveWriter } from './live-writer.ts'
import { endsMalformed, isMalformed } from './malformed-calls.ts'
import { UnusableFinishError } from './model-errors.ts'
import { offeredTools } from './offered-tools.ts'
import { type RepeatWatch, watchRepeats } from './repeated-calls.ts'
import type { ResolvedAgent } from './resolve-agent.ts'
import type { RunState } from './run-state.ts'
import type { StopSwitch } from './run-stop.ts'

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
  // An error part is the end for us, although a provider may keep the connection open after it.
  const broken = new AbortController()
  const steps = storeSteps(segment, firstIndex)

  const repeats: RepeatWatch = {
    stored: state,
    stepIndex: () => journal.stepIndex(),
    onRepeat: ({ stepIndex, toolName }) => journal.recordOnce('repeated-calls', { step: stepIndex, toolName }),
  }

  const stepsSoFar = (made: readonly StepResult<ToolSet>[]) => [
    ...state.steps.filter((step) => step.index < firstIndex),
    ...made.map((step) => ({ malformed: isMalformed(step) })),
  ]

  const result = streamText({
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
    abortSignal: AbortSignal.any([stopSwitch.signal, broken.signal]),
    // A model's silence is the journal's to limit: here its last chunk would seem to take as long as it takes to be stored.
    timeout: { stepMs: config.MODEL_STEP_MS, toolMs: config.TOOL_TIMEOUT_MS },
    stopWhen: [isStepCount(state.maxSteps - firstIndex), ({ steps: made }) => endsMalformed(stepsSoFar(made))],
    onStepEnd: (step) => void finished.push(step),
    onError: () => undefined,
    async prepareStep({ stepNumber, steps: finishedSteps, messages: stepMessages }) {
      await steps.store(finishedSteps)
      if (segment.isDraining() && stepNumber > 0) stopSwitch.stop({ kind: 'drain' })
      stopSwitch.signal.throwIfAborted()
      const index = firstIndex + stepNumber
      const playback = stepNumber === 0 ? state.stepToPlayBack() : undefined
      const inbox = playback === undefined ? await segment.takeInbox() : []
      state.noteInbox(index, inbox)
      journal.begin({
        index,
        inbox,
        ...(playback === undefined ? {} : { playback: { step: playback, toolCalls: state.toolCalls } }),
      })
      const input = [...stepMessages, ...inbox.map(inboxMessage)]
      const activeTools = toolsOfStep(agent, input, playback !== undefined)
      return {
        messages: input,
        activeTools,
        // The last allowed step runs with tools off, so that a text comes.
        ...(index === state.maxSteps - 1 && activeTools.length > 0 ? { toolChoice: 'none' as const } : {}),
      }
    },
  })

  const playedBack = state.stepToPlayBack()?.index
  let shownIndex = firstIndex
  let failure: { error: unknown } | undefined
  try {
    for await (const part of result.stream) {
      if (part.type === 'error') {
        failure ??= { error: part.error }
        broken.abort(part.error)
      }
      if (part.type === 'abort') failure ??= { error: new Error(part.reason ?? 'aborted') }
      keepPart(segment, part, shownIndex)
      showPart(segment, part, { index: shownIndex, playedBack: shownIndex === playedBack })
      if (part.type === 'finish-step') shownIndex += 1
    }
    if (failure === undefined) {
      const unstored = await steps.storeAllButLast(finished)
      return { kind: 'steps-made', ...(unstored === undefined ? {} : { unstored }) }
    }
  } catch (error) {
    failure ??= { error }
  }
  return { kind: 'failed', error: failure.error }
}

/** Sends viewers all that the model has said so far. */
export async function showAllSaid(live: LiveWriter): Promise<void> {
  // What came last is on its way through the SDK for the rest of this turn of the event loop.
  await new Promise((resolve) => setImmediate(resolve))
  await live.flush()
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
      await showAllSaid(live)
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

function keepPart({ state }: SegmentDependencies, part: TextStreamPart<ToolSet>, index: number): void {
  if (part.type === 'start-step') state.beginText()
  if (part.type === 'text-delta') state.addText(part.text)
  if (part.type === 'tool-result' && part.preliminary !== true)
    state.addToolCall(toolCallOf(part, index, { output: part.output }))
  if (part.type === 'tool-error') state.addToolCall(toolCallOf(part, index, { error: part.error }))
}

/** Shows a part to viewers; of a step that is played back only what comes after the model's output is new to them. */
function showPart(
  { agent, journal, live }: SegmentDependencies,
  part: TextStreamPart<ToolSet>,
  { index, playedBack }: { index: number; playedBack: boolean },
): void {
  if (part.type === 'tool-result' && part.preliminary === true && !journal.streams(part.toolCallId)) return
  if (playedBack && part.type !== 'tool-result' && part.type !== 'tool-error' && part.type !== 'finish-step') return
  const chunk = toUIMessageChunk(part, { tools: agent.tools, sendStart: false, sendFinish: false })
  if (chunk === undefined || chunk.type === 'error' || chunk.type === 'abort') return
  live.write(chunk, chunk.type === 'start-step' ? index : undefined)
}

function toolCallOf(
  part: { toolCallId: string; toolName: string },
  stepIndex: number,
  outcome: NonNullable<StoredToolCall['outcome']>,
): StoredToolCall {
  return { stepIndex, toolCallId: part.toolCallId, toolName: part.toolName, outcome }
}
