// What a model says in one step, recorded as it goes by, and as the SDK's loop takes it: whole, and after a crash again.
import type {
  LanguageModelV4Content,
  LanguageModelV4GenerateResult,
  LanguageModelV4StreamPart,
  LanguageModelV4Usage,
} from '@ai-sdk/provider'
import { addKnown, knownCount, type Usage } from '@offshoot/shared/contracts/usage'
import { UnusableFinishError } from './model-errors.ts'

type DeltaPart = Extract<LanguageModelV4StreamPart, { type: 'text-delta' | 'reasoning-delta' | 'tool-input-delta' }>

export interface OutputRecorder {
  add(part: LanguageModelV4StreamPart): void
  /** The parts so far; the deltas of each id are one. */
  parts(): LanguageModelV4StreamPart[]
}

export function createOutputRecorder(): OutputRecorder {
  const parts: LanguageModelV4StreamPart[] = []
  const joined: { part: DeltaPart; pieces: string[] }[] = []
  const open = new Map<string, (typeof joined)[number]>()
  return {
    add(part) {
      if (part.type === 'ping' || part.type === 'raw') return
      if (part.type !== 'text-delta' && part.type !== 'reasoning-delta' && part.type !== 'tool-input-delta') {
        parts.push(part)
        // An id may be used again for another text.
        if (/-(start|end)$/.test(part.type) && 'id' in part) open.delete(keyOf(part))
        return
      }
      const before = open.get(keyOf(part))
      if (before === undefined) {
        const first = { part: { ...part }, pieces: [part.delta] }
        parts.push(first.part)
        joined.push(first)
        open.set(keyOf(part), first)
      } else {
        before.pieces.push(part.delta)
        if (part.providerMetadata !== undefined) before.part.providerMetadata = part.providerMetadata
      }
    },
    parts() {
      for (const { part, pieces } of joined) part.delta = pieces.join('')
      return parts
    },
  }
}

function keyOf({ type, id }: { type: string; id?: string | undefined }): string {
  return `${type.slice(0, type.lastIndexOf('-'))}:${id}`
}

/**
 * An output as a model gives it that does not stream: texts and reasoning where they began.
 * @throws UnusableFinishError when it has no `finish`
 */
export function wholeOutput(parts: readonly LanguageModelV4StreamPart[]): LanguageModelV4GenerateResult {
  const finish = parts.find((part) => part.type === 'finish')
  if (finish === undefined) throw new UnusableFinishError("the model's stream ended without a finish reason")
  const { finishReason, usage, providerMetadata } = finish
  const { id, modelId, timestamp } = parts.find((part) => part.type === 'response-metadata') ?? {}
  return {
    content: contentOf(parts),
    finishReason,
    usage,
    ...(providerMetadata === undefined ? {} : { providerMetadata }),
    warnings: parts.find((part) => part.type === 'stream-start')?.warnings ?? [],
    response: {
      ...(id === undefined ? {} : { id }),
      ...(modelId === undefined ? {} : { modelId }),
      ...(timestamp === undefined ? {} : { timestamp }),
    },
  }
}

type Text = Extract<LanguageModelV4Content, { type: 'text' | 'reasoning' }>

/** Parts that are about the output, or whose content comes in another part. */
const NO_CONTENT: ReadonlySet<string> = new Set([
  'stream-start',
  'response-metadata',
  'tool-input-start',
  'tool-input-delta',
  'tool-input-end',
  'ping',
  'raw',
  'error',
  'finish',
])

function contentOf(parts: readonly LanguageModelV4StreamPart[]): LanguageModelV4Content[] {
  const content: LanguageModelV4Content[] = []
  /** Texts that have not ended, by kind and id. */
  const open = new Map<string, Text>()
  for (const part of parts) {
    if (isOfText(part)) {
      const type = part.type.startsWith('text') ? 'text' : 'reasoning'
      const key = `${type}:${part.id}`
      const text = (part.type.endsWith('-start') ? undefined : open.get(key)) ?? beginText(type, content)
      open.set(key, text)
      addTo(text, part)
      if (part.type.endsWith('-end')) open.delete(key)
    } else if (isContent(part)) content.push(part)
  }
  return content
}

function beginText(type: Text['type'], content: LanguageModelV4Content[]): Text {
  const text: Text = { type, text: '' }
  content.push(text)
  return text
}

function addTo(text: Text, part: TextPart): void {
  if ('delta' in part) text.text += part.delta
  if (part.providerMetadata !== undefined) text.providerMetadata = part.providerMetadata
  if (part.type === 'text-end' && part.citations !== undefined) Object.assign(text, { citations: part.citations })
}

type TextPart = Extract<LanguageModelV4StreamPart, { id: string; type: `text-${string}` | `reasoning-${string}` }>

function isOfText(part: LanguageModelV4StreamPart): part is TextPart {
  return /^(text|reasoning)-(start|delta|end)$/.test(part.type)
}

function isContent(
  part: LanguageModelV4StreamPart,
): part is Exclude<LanguageModelV4Content, Text> & LanguageModelV4StreamPart {
  return !NO_CONTENT.has(part.type)
}

export function toUsage(usage: LanguageModelV4Usage): Usage {
  const inputTokens = knownCount(usage.inputTokens.total)
  const outputTokens = knownCount(usage.outputTokens.total)
  return {
    inputTokens,
    outputTokens,
    reasoningTokens: knownCount(usage.outputTokens.reasoning),
    totalTokens: addKnown(inputTokens, outputTokens),
  }
}
