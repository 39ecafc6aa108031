// What the model and the tools of a run's steps say, as it comes: frames to viewers, texts and results into the state. The
// frames are those that the SDK makes of its own stream; only that calls come when the model has said all.
import type { LanguageModelV4Content, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { getErrorMessage } from '@ai-sdk/provider'
import {
  asSchema,
  type LanguageModelCallEndEvent,
  type TextStreamPart,
  type ToolExecutionEndEvent,
  toUIMessageChunk,
  type ToolSet,
} from 'ai'
import type { LiveWriter } from './live-writer.ts'
import type { ResolvedAgent } from './resolve-agent.ts'
import type { RunState } from './run-state.ts'

type Shown = TextStreamPart<ToolSet>
type ToolCall = Extract<Shown, { type: 'tool-call' }>
type Outcome = Extract<Shown, { type: 'tool-result' | 'tool-error' }>

type ModelPart<Type> = Extract<LanguageModelV4StreamPart, { type: Type }>
type ShownAsItIs = 'text-start' | 'text-end' | 'reasoning-start' | 'reasoning-end' | 'tool-input-delta' | 'custom'

const SHOWN_AS_IT_IS: ReadonlySet<string> = new Set<ShownAsItIs>([
  'text-start',
  'text-end',
  'reasoning-start',
  'reasoning-end',
  'tool-input-delta',
  'custom',
])

/** The loop makes of these what viewers get. */
const SHOWN_AT_END: ReadonlySet<string> = new Set(['file', 'reasoning-file', 'tool-approval-request'])

/** The SDK refuses inputs with such names; whether it refuses this one, it says itself. */
const SUSPICIOUS = /"(__proto__|constructor)"/

export interface ShownStep {
  index: number
  /** Viewers have seen its model's output, but for calls that are none. */
  playedBack: boolean
  /** Those that the model was offered. */
  activeTools: readonly string[]
  /** The model may call none; calls that it makes all the same are not shown. */
  withoutTools: boolean
}

export interface ShownSteps {
  begin(step: ShownStep): void
  /** A part of the model's output, as it comes. */
  part(part: LanguageModelV4StreamPart): void
  /** The calls of the whole output, before it is stored: those that the loop is going to run. */
  calls(content: readonly LanguageModelV4Content[]): Promise<void>
  /** The loop has the output: it knows which calls are none, and nothing has run. */
  callEnd(event: LanguageModelCallEndEvent): void
  /** A value of a tool that streams. */
  toolValue(toolCallId: string, value: unknown): void
  toolEnd(output: ToolExecutionEndEvent['toolOutput']): void
  /** The step has ended, if one is under way. */
  end(): void
}

export function showSteps({
  agent,
  live,
  state,
}: {
  agent: Pick<ResolvedAgent, 'tools'>
  live: Pick<LiveWriter, 'write'>
  state: RunState
}): ShownSteps {
  let step: ShownStep = { index: 0, playedBack: false, activeTools: [], withoutTools: false }
  let isUnderWay = false
  const calls = new Map<string, ToolCall>()

  function show(part: Shown): void {
    const chunk = toUIMessageChunk(part, { tools: agent.tools, sendStart: false, sendFinish: false })
    if (chunk !== undefined) live.write(chunk, chunk.type === 'start-step' ? step.index : undefined)
  }

  function takeOutcome(part: Outcome): void {
    const { toolCallId, toolName } = part
    const outcome = part.type === 'tool-result' ? { output: part.output as unknown } : { error: part.error }
    state.addToolCall({ stepIndex: step.index, toolCallId, toolName, outcome })
    if (!step.playedBack || part.providerExecuted !== true) show(part)
  }

  function showCall(call: ToolCall): void {
    calls.set(call.toolCallId, call)
    show(call)
  }

  function showInputStart(part: ModelPart<'tool-input-start'>): void {
    const tool = toolOf(agent.tools, part.toolName)
    show({ ...part, dynamic: part.dynamic ?? tool?.type === 'dynamic', ...knownOf(tool) })
  }

  function takeProviderResult({ result, isError, ...part }: ModelPart<'tool-result'>): void {
    const outcome = isError === true ? { type: 'tool-error', error: result } : { type: 'tool-result', output: result }
    const input = calls.get(part.toolCallId)?.input
    takeOutcome({ ...part, input, providerExecuted: true, ...outcome } as Outcome)
  }

  return {
    begin(next) {
      step = next
      calls.clear()
    },
    part(part) {
      if (!isUnderWay) {
        isUnderWay = true
        state.beginText()
        if (!step.playedBack) show({ type: 'start-step', request: {}, warnings: [] })
      }
      if (part.type === 'text-delta') state.addText(part.delta)
      if (step.withoutTools && part.type.startsWith('tool-')) return
      if (part.type === 'tool-result') takeProviderResult(part)
      else if (step.playedBack) return
      // What the provider runs itself is under way already.
      else if (part.type === 'tool-call' && part.providerExecuted === true) showCall(providerCall(part, agent.tools))
      else if (part.type === 'tool-input-start') showInputStart(part)
      else if (part.type === 'text-delta' || part.type === 'reasoning-delta') {
        const { delta, ...rest } = part
        if (delta !== '') show({ ...rest, text: delta })
      } else if (isShownAsItIs(part)) show(part)
    },
    async calls(content) {
      if (step.withoutTools) return
      for (const call of await validCalls(content, agent.tools, step.activeTools)) showCall(call)
    },
    callEnd({ content }) {
      for (const part of content) {
        if (step.withoutTools && part.type.startsWith('tool-')) continue
        if (SHOWN_AT_END.has(part.type) && !step.playedBack) show(part as Shown)
        if (part.type !== 'tool-call' || part.providerExecuted === true) continue
        const isShown = calls.has(part.toolCallId) || step.playedBack
        calls.set(part.toolCallId, part)
        if (part.invalid !== true) {
          if (!isShown) show(part)
          continue
        }
        const { error, providerMetadata: _, ...call } = part
        show(part)
        takeOutcome({ ...call, type: 'tool-error', error: getErrorMessage(error), dynamic: true })
      }
    },
    toolValue(toolCallId, value) {
      const call = calls.get(toolCallId)
      if (call !== undefined) show({ ...call, type: 'tool-result', output: value, preliminary: true })
    },
    toolEnd: takeOutcome,
    end() {
      if (isUnderWay) show({ type: 'finish-step' } as Shown)
      isUnderWay = false
    },
  }
}

function isShownAsItIs(part: LanguageModelV4StreamPart): part is ModelPart<ShownAsItIs> {
  return SHOWN_AS_IT_IS.has(part.type)
}

/** What the SDK adds to a call of a tool that it knows. */
function knownOf(tool: ToolSet[string] | undefined) {
  return {
    ...(tool?.title === undefined ? {} : { title: tool.title }),
    ...(tool?.metadata === undefined ? {} : { toolMetadata: tool.metadata }),
  }
}

function providerCall(part: ModelPart<'tool-call'>, tools: ToolSet): ToolCall {
  const input = parsed(part.input)
  const call = { ...part, ...knownOf(toolOf(tools, part.toolName)), dynamic: true as const }
  return input === undefined ? { ...call, invalid: true } : { ...call, input }
}

function toolOf(tools: ToolSet, name: string): ToolSet[string] | undefined {
  return Object.hasOwn(tools, name) ? tools[name] : undefined
}

/** The calls of ours that the loop is going to take for valid. */
async function validCalls(
  content: readonly LanguageModelV4Content[],
  tools: ToolSet,
  activeTools: readonly string[],
): Promise<ToolCall[]> {
  const calls: ToolCall[] = []
  for (const part of content) {
    if (part.type !== 'tool-call' || part.providerExecuted === true || !activeTools.includes(part.toolName)) continue
    const tool = toolOf(tools, part.toolName)
    const input = tool === undefined ? undefined : await validInput(tool, part.input)
    if (input !== undefined) calls.push({ ...part, ...knownOf(tool), input })
  }
  return calls
}

/** As the loop is going to parse it. Undefined: it is none. */
async function validInput(tool: ToolSet[string], text: string): Promise<unknown> {
  const input = SUSPICIOUS.test(text) ? undefined : parsed(text)
  if (input === undefined) return undefined
  try {
    const result = await asSchema(tool.inputSchema).validate?.(input)
    if (result === undefined) return input
    return result.success ? result.value : undefined
  } catch {
    // A schema with a bug: the loop calls such a call malformed, too.
    return undefined
  }
}

/** Undefined: it is no JSON. */
function parsed(input: string): unknown {
  try {
    return input.trim() === '' ? {} : JSON.parse(input)
  } catch {
    return undefined
  }
}
