// The assistant UIMessage that a job's stored steps amount to. It is made from the journal, not from the stream, so that
// it is the same after any number of crashes.
import type { ModelMessage, UIMessage } from 'ai'
import type { StoredStep, StoredToolCall } from './db/journal.ts'

type Part = UIMessage['parts'][number]
type AssistantContent = Exclude<Extract<ModelMessage, { role: 'assistant' }>['content'], string>
type ToolContent = Extract<ModelMessage, { role: 'tool' }>['content']

/** The parts of the message: each whole step, then what a cut step had said. */
export function agentMessageParts(
  steps: readonly StoredStep[],
  toolCalls: readonly StoredToolCall[],
  cutText = '',
): Part[] {
  const parts: Part[] = []
  for (const step of steps) {
    if (step.responseMessages === null) continue
    parts.push(
      { type: 'step-start' },
      ...stepParts(
        step.responseMessages,
        toolCalls.filter((call) => call.stepIndex === step.index),
      ),
    )
  }
  if (cutText !== '') parts.push({ type: 'step-start' }, { type: 'text', text: cutText, state: 'done' })
  return parts
}

/**
 * The parts of a message that was cut: the whole steps, and the last one as far as it came. Each of its calls has a
 * result: its own, or that nobody knows the outcome. `cutText` is what a step had said whose output is not stored.
 */
export function cutMessageParts(
  steps: readonly StoredStep[],
  toolCalls: readonly StoredToolCall[],
  cutText = '',
): Part[] {
  const cut = steps.at(-1)
  if (cut === undefined || cut.responseMessages !== null) return agentMessageParts(steps, toolCalls, cutText)
  const whole = agentMessageParts(steps, toolCalls)
  const text = outputText(cut)
  const said: Part[] = text === '' ? [] : [{ type: 'text', text, state: 'done' }]
  const called = cut.modelOutput.flatMap((part) =>
    part.type === 'tool-call' && part.providerExecuted !== true
      ? [cutCallPart(part, findCall(toolCalls, cut.index, part.toolCallId))]
      : [],
  )
  return [...whole, { type: 'step-start' }, ...said, ...called]
}

function outputText({ modelOutput }: Pick<StoredStep, 'modelOutput'>): string {
  return modelOutput.map((part) => (part.type === 'text-delta' ? part.delta : '')).join('')
}

/** A model's input of a call need not be JSON. */
function parsed(input: string): unknown {
  try {
    return JSON.parse(input)
  } catch {
    return input
  }
}

/** Without the provider's metadata: an item of its is refused when the reasoning before it is not there, too. */
function cutCallPart(
  { toolCallId, toolName, input }: { toolCallId: string; toolName: string; input: string },
  stored: StoredToolCall | undefined,
): Part {
  const base = { type: `tool-${toolName}` as const, toolCallId, input: parsed(input) }
  if (stored?.outcome === undefined) return { ...base, state: 'output-error', errorText: CUT_CALL }
  if ('error' in stored.outcome) return { ...base, state: 'output-error', errorText: String(stored.outcome.error) }
  return { ...base, state: 'output-available', output: stored.outcome.output ?? null }
}

const CUT_CALL = 'The call was cut off by the end of the job, and its outcome is unknown: it may have taken effect.'

function findCall(
  toolCalls: readonly StoredToolCall[],
  stepIndex: number,
  toolCallId: string,
): StoredToolCall | undefined {
  return toolCalls.find((call) => call.stepIndex === stepIndex && call.toolCallId === toolCallId)
}

/** The text of one step, which is the job's result when it is the last one. */
export function stepText(step: { responseMessages: readonly ModelMessage[] | null }): string {
  const texts: string[] = []
  for (const message of step.responseMessages ?? []) {
    if (message.role !== 'assistant') continue
    if (typeof message.content === 'string') texts.push(message.content)
    else for (const part of message.content) if (part.type === 'text') texts.push(part.text)
  }
  return texts.join('')
}

/** The text of a last step that was cut, else that of the last whole one; null when there is none. */
export function lastStepText(steps: readonly StoredStep[]): string | null {
  const last = steps.findLast((step) => step.responseMessages !== null || outputText(step) !== '')
  const text = last === undefined ? '' : last.responseMessages === null ? outputText(last) : stepText(last)
  return text === '' ? null : text
}

export interface OpenCall {
  toolCallId: string
  toolName: string
  input: unknown
}

/** The tool calls of a step that have no result yet, in the model's order. Calls that the provider runs itself are not ours to answer. */
export function openCalls(responseMessages: readonly ModelMessage[]): OpenCall[] {
  const answered = new Set<string>()
  const calls: OpenCall[] = []
  for (const message of responseMessages) {
    if (message.role !== 'assistant' && message.role !== 'tool') continue
    if (typeof message.content === 'string') continue
    for (const part of message.content) {
      if (part.type === 'tool-result') answered.add(part.toolCallId)
      if (part.type === 'tool-call' && part.providerExecuted !== true) {
        calls.push({ toolCallId: part.toolCallId, toolName: part.toolName, input: part.input })
      }
    }
  }
  return calls.filter((call) => !answered.has(call.toolCallId))
}

function stepParts(messages: readonly ModelMessage[], toolCalls: readonly StoredToolCall[]): Part[] {
  const results = new Map<string, Extract<ToolContent[number], { type: 'tool-result' }>>()
  for (const message of messages) {
    if (message.role !== 'tool') continue
    for (const part of message.content) if (part.type === 'tool-result') results.set(part.toolCallId, part)
  }
  const parts: Part[] = []
  for (const message of messages) {
    if (message.role !== 'assistant') continue
    if (typeof message.content === 'string') parts.push({ type: 'text', text: message.content, state: 'done' })
    else for (const part of message.content) parts.push(...assistantPart(part, results, toolCalls))
  }
  return parts
}

function assistantPart(
  part: AssistantContent[number],
  results: ReadonlyMap<string, Extract<ToolContent[number], { type: 'tool-result' }>>,
  toolCalls: readonly StoredToolCall[],
): Part[] {
  const providerMetadata =
    'providerOptions' in part && part.providerOptions !== undefined ? { providerMetadata: part.providerOptions } : {}
  switch (part.type) {
    case 'text':
      return [{ type: 'text', text: part.text, state: 'done', ...providerMetadata }]
    case 'reasoning':
      return [{ type: 'reasoning', text: part.text, state: 'done', ...providerMetadata }]
    case 'file':
      return typeof part.data === 'string'
        ? [{ type: 'file', mediaType: part.mediaType, url: `data:${part.mediaType};base64,${part.data}` }]
        : []
    case 'tool-call':
      return [
        toolPart(
          part,
          results.get(part.toolCallId),
          toolCalls.find((call) => call.toolCallId === part.toolCallId),
        ),
      ]
    default:
      return []
  }
}

function toolPart(
  call: Extract<AssistantContent[number], { type: 'tool-call' }>,
  result: Extract<ToolContent[number], { type: 'tool-result' }> | undefined,
  stored: StoredToolCall | undefined,
): Part {
  const base = {
    type: `tool-${call.toolName}` as const,
    toolCallId: call.toolCallId,
    input: call.input,
    ...(call.providerOptions === undefined ? {} : { callProviderMetadata: call.providerOptions }),
  }
  if (stored?.outcome !== undefined && 'output' in stored.outcome)
    return { ...base, state: 'output-available', output: stored.outcome.output ?? null }
  if (result === undefined) return { ...base, state: 'output-error', errorText: 'The call has no result.' }
  const { output } = result
  switch (output.type) {
    case 'error-text':
      return { ...base, state: 'output-error', errorText: output.value }
    case 'error-json':
      return { ...base, state: 'output-error', errorText: JSON.stringify(output.value) }
    case 'execution-denied':
      return { ...base, state: 'output-error', errorText: output.reason ?? 'The call was denied.' }
    default:
      return { ...base, state: 'output-available', output: output.value }
  }
}
