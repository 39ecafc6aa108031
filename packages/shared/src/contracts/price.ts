// What a model costs. Prices come from the product's config module: nobody else knows what it pays. A model without a
// price has an unknown cost, which is not 0.
import { z } from 'zod'
import type { Usage } from './usage.ts'

const perMillion = z.number().min(0).max(1_000_000)

/** US dollars for a million tokens. Without a price of its own, cached input costs as much as other input. */
export const modelPriceSchema = z.strictObject({
  inputUsdPerMillion: perMillion,
  cachedInputUsdPerMillion: perMillion.optional(),
  outputUsdPerMillion: perMillion,
})
export type ModelPrice = z.infer<typeof modelPriceSchema>

/**
 * The cost of model calls in whole micro-dollars, rounded up; null where the price or a count is unknown.
 * @param cachedInputTokens of the input tokens, those that the provider had in its cache
 */
export function costMicroUsd(
  price: ModelPrice | undefined,
  usage: Pick<Usage, 'inputTokens' | 'outputTokens'>,
  cachedInputTokens = 0,
): number | null {
  if (price === undefined || usage.inputTokens === null || usage.outputTokens === null) return null
  const cached = Math.min(cachedInputTokens, usage.inputTokens)
  // A dollar for a million tokens is a micro-dollar for each.
  return Math.ceil(
    (usage.inputTokens - cached) * price.inputUsdPerMillion +
      cached * (price.cachedInputUsdPerMillion ?? price.inputUsdPerMillion) +
      usage.outputTokens * price.outputUsdPerMillion,
  )
}
