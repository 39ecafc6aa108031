// What a model says in one step, recorded as it goes by and played back after a crash.
import type { LanguageModelV4StreamPart, LanguageModelV4Usage } from '@ai-sdk/provider'
import { addKnown, knownCount, type Usage } from '@offshoot/shared/contracts/usage'

type DeltaPart = Extract<LanguageModelV4StreamPart, { type: 'text-delta' | 'reasoning-delta' | 'tool-input-delta' }>

export interface OutputRecorder {
  add(part: LanguageModelV4StreamPart): void
  /** The parts so far; the deltas of each id are one. */
  parts(): LanguageModelV4StreamPart[]
  hasError(): boolean
}

export function createOutputRecorder(): OutputRecorder {
  const parts: LanguageModelV4StreamPart[] = []
  const open = new Map<string, { part: DeltaPart; pieces: string[] }>()
  let failed = false
  return {
    add(part) {
      if (part.type === 'ping' || part.type === 'raw') return
      if (part.type === 'error') failed = true
      if (part.type !== 'text-delta' && part.type !== 'reasoning-delta' && part.type !== 'tool-input-delta') {
        parts.push(part)
        return
      }
      const key = `${part.type}:${part.id}`
      const joined = open.get(key)
      if (joined === undefined) {
        const first = { ...part }
        parts.push(first)
        open.set(key, { part: first, pieces: [part.delta] })
      } else {
        joined.pieces.push(part.delta)
        if (part.providerMetadata !== undefined) joined.part.providerMetadata = part.providerMetadata
      }
    },
    parts() {
      for (const { part, pieces } of open.values()) part.delta = pieces.join('')
      return parts
    },
    hasError: () => failed,
  }
}

export function streamOf(parts: readonly LanguageModelV4StreamPart[]): ReadableStream<LanguageModelV4StreamPart> {
  return ReadableStream.from(parts)
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
