// How a mock model reads a request: what was asked last, and how far the conversation has come since.
import type { ChatCompletionRequest, ChatMessage } from '@copilotkit/aimock'

/** How many rounds of tool results there are since the last user message. */
export function roundOf({ messages }: ChatCompletionRequest): number {
  const since = messages.slice(messages.findLastIndex((message) => message.role === 'user') + 1)
  return since.filter((message, at) => message.role === 'tool' && since[at - 1]?.role !== 'tool').length
}

export function lastUserText({ messages }: ChatCompletionRequest): string {
  return textOf(messages.findLast((message) => message.role === 'user'))
}

export function textOf(message: ChatMessage | undefined): string {
  if (typeof message?.content === 'string') return message.content
  return (message?.content ?? []).map((part) => part.text ?? '').join('')
}
