// What an attempt's model calls have cost that were cut before their output was stored: aborted, timed out, reset, or ended
// in a way that is no answer. The provider charges for them and mostly does not say how much, so it is estimated from the
// request and from what has come of the answer. Counted when the attempt gives its claim up, and only then: a call that
// ends as it should costs nothing here but a place in a set.
import type {
  LanguageModelV4CallOptions,
  LanguageModelV4StreamPart,
  LanguageModelV4StreamResult,
} from '@ai-sdk/provider'
import { costMicroUsd, type ModelPrice } from '@offshoot/shared/contracts/price'
import type { CutTokens } from '@offshoot/shared/contracts/usage'
import { toUsage } from './recorded-output.ts'

/** English text has about four characters a token, JSON somewhat fewer: near enough for what is marked as an estimate. */
const CHARACTERS_A_TOKEN = 4

type DoStream = (signal: AbortSignal) => PromiseLike<LanguageModelV4StreamResult>
type Tokens = Pick<CutTokens, 'inputTokens' | 'outputTokens'>
type Request = Pick<LanguageModelV4CallOptions, 'prompt' | 'tools'>

interface OpenCall {
  request: Request
  price: ModelPrice | undefined
  /** Characters of text, reasoning and tool input that have come. */
  received: number
  /** What the provider has said after all. */
  said?: CutTokens
  /** The whole output has come, and is stored with the next step of the run. */
  held?: true
}

export interface CallMeter {
  /** The same, with each try counted. One that the provider refuses or does not answer costs nothing, unless we gave it up. */
  counting(doStream: DoStream): DoStream
  received(part: LanguageModelV4StreamPart): void
  /** The whole output has come; it is not stored yet. */
  held(): void
  /** The output is stored, with its usage. */
  stored(): void
}

export interface CutCalls {
  meter(request: Request, price?: ModelPrice): CallMeter
  /** Whether there was one; an output that is held is none. */
  some(): boolean
  /** The output that was held is stored. */
  heldStored(): void
  /** What the cut calls have cost so far; undefined when there was none. */
  tokens(): CutTokens | undefined
}

export function createCutCalls(): CutCalls {
  const open = new Set<OpenCall>()
  return {
    meter(request, price) {
      let call: OpenCall = { request, price, received: 0 }
      return {
        counting: (doStream) => async (signal) => {
          const sent: OpenCall = { request, price, received: 0 }
          call = sent
          open.add(sent)
          try {
            return await doStream(signal)
          } catch (error) {
            if (!signal.aborted) open.delete(sent)
            throw error
          }
        },
        received(part) {
          if (part.type === 'text-delta' || part.type === 'reasoning-delta' || part.type === 'tool-input-delta')
            call.received += part.delta.length
          if (part.type === 'finish') {
            const { inputTokens, outputTokens } = toUsage(part.usage)
            if (inputTokens !== null && outputTokens !== null)
              call.said = withCost({ inputTokens, outputTokens }, price)
          }
        },
        held: () => void (call.held = true),
        stored: () => void open.delete(call),
      }
    },
    some: () => [...open].some(({ held }) => held === undefined),
    heldStored() {
      for (const call of open) if (call.held === true) open.delete(call)
    },
    tokens() {
      if (open.size === 0) return undefined
      const all = [...open].map(
        ({ request, price, received, said }) => said ?? withCost(estimate(request, received), price),
      )
      return {
        inputTokens: all.reduce((sum, each) => sum + each.inputTokens, 0),
        outputTokens: all.reduce((sum, each) => sum + each.outputTokens, 0),
        costMicroUsd: all.reduce<number | null>((sum, each) => addCost(sum, each.costMicroUsd ?? null), 0),
      }
    },
  }
}

function withCost(tokens: Tokens, price: ModelPrice | undefined): CutTokens {
  return { ...tokens, costMicroUsd: costMicroUsd(price, tokens) }
}

/** A sum with an unknown summand is unknown. */
function addCost(sum: number | null, cost: number | null): number | null {
  return sum === null || cost === null ? null : sum + cost
}

function estimate({ prompt, tools }: Request, received: number): Tokens {
  return { inputTokens: toTokens(charactersIn(prompt) + charactersIn(tools)), outputTokens: toTokens(received) }
}

function toTokens(characters: number): number {
  return Math.ceil(characters / CHARACTERS_A_TOKEN)
}

/** The texts and names in a request. What a file costs its bytes do not tell: it is left out. */
function charactersIn(value: unknown): number {
  if (typeof value === 'string') return value.length
  if (typeof value === 'number' || typeof value === 'boolean') return 1
  if (value === null || typeof value !== 'object' || ArrayBuffer.isView(value)) return 0
  if (Array.isArray(value)) return value.reduce<number>((sum, item) => sum + charactersIn(item), 0)
  if ('type' in value && value.type === 'file') return 0
  return Object.entries(value).reduce((sum, [key, field]) => sum + key.length + charactersIn(field), 0)
}
