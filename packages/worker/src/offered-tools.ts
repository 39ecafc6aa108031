// Which of its tools a job's model is offered in a step.
import type { ModelMessage, ToolResultPart, ToolSet } from 'ai'
import { asksToReadOn, READ_RESULT } from '@offshoot/shared/contracts/truncated-result'

/** All tools, `readResult` only where something in the input was truncated: an ordinary request stays as it is. */
export function offeredTools(tools: ToolSet, input: readonly ModelMessage[]): string[] {
  const names = Object.keys(tools)
  return input.some((message) => textsOf(message).some(asksToReadOn))
    ? names
    : names.filter((name) => name !== READ_RESULT)
}

/** The texts in which a note of truncation may stand: those of users (the inbox) and of tools. */
function textsOf({ role, content }: ModelMessage): string[] {
  if (role === 'user') {
    if (typeof content === 'string') return [content]
    return content.flatMap((part) => (part.type === 'text' ? [part.text] : []))
  }
  return role === 'tool'
    ? content.flatMap((part) => (part.type === 'tool-result' ? textsOfOutput(part.output) : []))
    : []
}

function textsOfOutput(output: ToolResultPart['output']): string[] {
  if (output.type === 'text' || output.type === 'error-text') return [output.value]
  if (output.type !== 'json' && output.type !== 'error-json') return []
  // Outputs of our own tools: the note stands in one of their fields.
  const { value } = output
  return typeof value === 'object' && value !== null
    ? Object.values(value).filter((field) => typeof field === 'string')
    : []
}
