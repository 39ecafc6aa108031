import { expect, test } from 'vitest'
import { addUsage, knownCount, type Usage } from './usage.ts'

const usage = (inputTokens: number | null, outputTokens: number | null): Usage => ({
  inputTokens,
  outputTokens,
  reasoningTokens: null,
  totalTokens: inputTokens === null || outputTokens === null ? null : inputTokens + outputTokens,
})

const UNKNOWN_USAGE = usage(null, null)

test('COST-10: estimates are summed, and absent where there is none', () => {
  expect(addUsage(usage(1, 1), usage(2, 2))).not.toHaveProperty('estimatedTokens')
  const estimated = { ...usage(5, 5), estimatedTokens: 10 }
  expect(addUsage(usage(1, 1), estimated)).toMatchObject({ inputTokens: 6, estimatedTokens: 10 })
  expect(addUsage(estimated, estimated)).toMatchObject({ inputTokens: 10, estimatedTokens: 20 })
})

test('STATE-18: unknown, zero and known are told apart in a sum', () => {
  expect(addUsage(UNKNOWN_USAGE, UNKNOWN_USAGE)).toEqual(UNKNOWN_USAGE)
  expect(addUsage(usage(0, 0), UNKNOWN_USAGE)).toEqual(usage(0, 0))
  expect(addUsage(UNKNOWN_USAGE, usage(3, 4))).toEqual(usage(3, 4))
  expect(addUsage(usage(1, null), usage(2, 5))).toEqual({
    inputTokens: 3,
    outputTokens: 5,
    reasoningTokens: null,
    totalTokens: 7,
  })
})

test('LOSS-19: sums go beyond 32 bits', () => {
  expect(addUsage(usage(2_147_483_647, 0), usage(1, 0)).inputTokens).toBe(2_147_483_648)
})

test('LOSS-19: a sum that JSON cannot hold exactly is unknown, not wrong', () => {
  const most = Number.MAX_SAFE_INTEGER
  expect(addUsage(usage(most - 1, 0), usage(1, 0)).inputTokens).toBe(most)
  expect(addUsage(usage(most, 0), usage(1, 0)).inputTokens).toBeNull()
})

test('LOSS-19: a count that is missing, NaN, infinite, negative or too large for JSON is unknown', () => {
  for (const count of [undefined, null, Number.NaN, Infinity, -Infinity, -1, -0.5, 2 ** 53, 1e300])
    expect(knownCount(count)).toBeNull()
  expect(knownCount(0)).toBe(0)
  expect(knownCount(12.7)).toBe(12)
})
