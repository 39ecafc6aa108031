// The cap on what tools give: a value that is too long goes on as its head and tail, and whole into a Blob. The tool's own
// say on what the model reads of a value is kept.
import { getErrorMessage, type JSONValue } from '@ai-sdk/provider'
import type { Tool } from 'ai'
import {
  isTruncatedResult,
  MAX_RESULT_LENGTH,
  type TextOutput,
  textOfTruncated,
  truncateResult,
  truncateText,
} from '@offshoot/shared/contracts/truncated-result'
import { storedText } from '@offshoot/shared/db/stored-value'
import { OWN_TOOLS } from '@offshoot/shared/extensions'
import { newId } from '@offshoot/shared/ids'
import { findAiTool } from '@offshoot/shared/tools/registry'

/** JSON of a value that its tool turns into images or other files for the model: head and tail of those are of no use. */
const MAX_MEDIA_LENGTH = 10_000_000

type ToModelOutput = NonNullable<Tool['toModelOutput']>
type ModelOutput = Awaited<ReturnType<ToModelOutput>>

export interface KeptResult {
  /** What stands for the value from now on. */
  value: unknown
  /** The whole, where `value` is only head and tail of it. */
  whole?: { ref: string; text: string }
}

interface ToolCall {
  toolCallId: string
  input: unknown
}

/** How long a tool's results may be. Our own tools see to that themselves: the whole of what they give is in a row already. */
export function maxResultLengthOf(toolName: string): number {
  if (OWN_TOOLS.has(toolName)) return Infinity
  return findAiTool(toolName)?.maxResultLength ?? MAX_RESULT_LENGTH
}

/**
 * What is kept of a tool's last value.
 * @throws Error when the value is no JSON: that can reach no model
 */
export async function limitResult(toolName: string, tool: Tool, call: ToolCall, value: unknown): Promise<KeptResult> {
  const maxLength = maxResultLengthOf(toolName)
  const text = textOf(toolName, value)
  if (text.length <= maxLength) return { value }
  const said = await tool.toModelOutput?.({ ...call, output: value })
  if (said !== undefined && hasMedia(said) && text.length <= MAX_MEDIA_LENGTH) return { value }
  const ref = newId()
  const truncated = truncateResult(text, { ref, maxLength })
  const forModel = said === undefined ? undefined : shortText(said, maxLength)
  return { value: { ...truncated, ...(forModel === undefined ? {} : { forModel }) }, whole: { ref, text } }
}

/** What viewers see of a value while its tool still runs. */
export function limitPreliminary(toolName: string, value: unknown): unknown {
  return truncateResult(textOf(toolName, value), { maxLength: maxResultLengthOf(toolName) }) ?? value
}

/** What is kept of an error that a tool threw: the model reads its message. */
export function limitError(toolName: string, error: unknown): KeptResult {
  const text = storedText(error instanceof Error ? error.message : getErrorMessage(error))
  const maxLength = maxResultLengthOf(toolName)
  if (text.length <= maxLength) return { value: error }
  const ref = newId()
  const short = new Error(truncateText(text, { ref, maxLength }))
  if (error instanceof Error) short.name = error.name
  return { value: short, whole: { ref, text } }
}

/** What the model reads of a value: in part, when it was too long; otherwise what the tool says, when that is not. */
export function limitedModelOutput(toolName: string, tool: Tool): ToModelOutput {
  return async (call): Promise<ModelOutput> => {
    const { output } = call
    if (isTruncatedResult(output)) return output.forModel ?? { type: 'text', value: textOfTruncated(output) }
    if (tool.toModelOutput === undefined) return plainOutput(output)
    return shortened(await tool.toModelOutput(call), maxResultLengthOf(toolName))
  }
}

/** As the SDK does it for a tool that says nothing of its own. */
function plainOutput(output: unknown): ModelOutput {
  if (typeof output === 'string') return { type: 'text', value: output }
  // What reaches a model is JSON: dates are texts there, absent fields are left out.
  const json: JSONValue = output === undefined ? null : JSON.parse(JSON.stringify(output) ?? 'null')
  return { type: 'json', value: json }
}

function shortened(said: ModelOutput, maxLength: number): ModelOutput {
  if (said.type === 'content') {
    const value = said.value.map((part) =>
      part.type === 'text' ? { ...part, text: truncateText(part.text, { maxLength }) } : part,
    )
    return { ...said, value }
  }
  if (said.type === 'text' || said.type === 'error-text')
    return { ...said, value: truncateText(said.value, { maxLength }) }
  if (said.type !== 'json' && said.type !== 'error-json') return said
  const text = JSON.stringify(said.value)
  if (text.length <= maxLength) return said
  return { type: said.type === 'json' ? 'text' : 'error-text', value: truncateText(text, { maxLength }) }
}

function hasMedia(said: ModelOutput): boolean {
  return said.type === 'content' && said.value.some((part) => part.type !== 'text')
}

/** What a tool says of a value, where that is text and short enough to be kept beside head and tail. */
function shortText(said: ModelOutput, maxLength: number): TextOutput | undefined {
  const output = textOutputOf(said)
  return output !== undefined && JSON.stringify(output.value).length <= maxLength ? output : undefined
}

function textOutputOf(said: ModelOutput): TextOutput | undefined {
  switch (said.type) {
    case 'text':
    case 'error-text':
      return { type: said.type, value: said.value }
    case 'json':
    case 'error-json':
      return { type: said.type, value: said.value }
    case 'content':
      return { type: 'text', value: said.value.map((part) => (part.type === 'text' ? part.text : '')).join('\n') }
    case 'execution-denied':
      return undefined
  }
}

/** The text that is measured and kept: a text itself, of anything else its JSON. */
function textOf(toolName: string, value: unknown): string {
  if (typeof value === 'string') return storedText(value)
  try {
    return storedText(JSON.stringify(value) ?? '')
  } catch (cause) {
    throw new Error(
      `The tool ${toolName} returned a value that is no JSON: ${cause instanceof Error ? cause.message.split('\n')[0] : String(cause)}`,
      { cause },
    )
  }
}
