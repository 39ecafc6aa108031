import { z } from 'zod'

/**
 * Tokens of one or several model calls. `null` means unknown, which is not the same as 0. Calls that were cut are counted
 * with an estimate. A count beyond 2^53 - 1, which JSON's readers would get wrong, is unknown, too.
 */
export const usageSchema = z.object({
  inputTokens: z.number().int().nullable(),
  outputTokens: z.number().int().nullable(),
  reasoningTokens: z.number().int().nullable(),
  totalTokens: z.number().int().nullable(),
  estimatedTokens: z
    .number()
    .int()
    .optional()
    .describe('how many of totalTokens are an estimate, for model calls that were cut; absent: none was'),
})
export type Usage = z.infer<typeof usageSchema>

/** What model calls that were cut have cost, as an estimate. */
export interface CutTokens {
  inputTokens: number
  outputTokens: number
  /** Whole micro-dollars; absent or null where a price is not known. */
  costMicroUsd?: number | null
}

/** The sum of what is known; unknown only where every summand is. */
export function addUsage(a: Usage, b: Usage): Usage {
  return {
    inputTokens: addKnown(a.inputTokens, b.inputTokens),
    outputTokens: addKnown(a.outputTokens, b.outputTokens),
    reasoningTokens: addKnown(a.reasoningTokens, b.reasoningTokens),
    totalTokens: addKnown(a.totalTokens, b.totalTokens),
    ...(a.estimatedTokens === undefined && b.estimatedTokens === undefined
      ? {}
      : { estimatedTokens: (a.estimatedTokens ?? 0) + (b.estimatedTokens ?? 0) }),
  }
}

/** A token count as it may be stored and told: a whole number, or null for missing, NaN, infinite and beyond 2^53 - 1. */
export function knownCount(count: number | null | undefined): number | null {
  if (typeof count !== 'number' || count < 0) return null
  const whole = Math.trunc(count)
  return Number.isSafeInteger(whole) ? whole : null
}

/** The sum of what is known of two counts. */
export function addKnown(a: number | null, b: number | null): number | null {
  if (a === null) return b
  return b === null ? a : knownCount(a + b)
}
