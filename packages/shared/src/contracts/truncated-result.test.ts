import { expect, test } from 'vitest'
import { characterCount } from './text.ts'
import {
  asksToReadOn,
  isTruncatedResult,
  MAX_RESULT_LENGTH,
  textOfTruncated,
  truncateResult,
  truncateText,
} from './truncated-result.ts'

const REF = '01920000-0000-7000-8000-000000000000'

test('COST-11: a text up to the limit stays as it is', () => {
  const text = 'x'.repeat(MAX_RESULT_LENGTH)
  expect(truncateResult(text, { ref: REF })).toBeUndefined()
  expect(truncateText(text, { ref: REF })).toBe(text)
})

test('COST-11: a longer one is its head and tail, with its size and the place to read on, within the limit', () => {
  const text = Array.from({ length: 20_000 }, (_, at) => `line ${at}\n`).join('')
  const truncated = truncateResult(text, { ref: REF })
  if (truncated === undefined) throw new Error('not truncated')
  const { head, tail, characters, note } = truncated
  expect(characters).toBe(text.length)
  expect(text.startsWith(head)).toBe(true)
  expect(text.endsWith(tail)).toBe(true)
  const left = text.length - head.length - tail.length
  expect(note).toBe(
    `[${left} of ${text.length} characters are left out here. Read on with readResult({ "ref": "${REF}", "offset": ${head.length} }).]`,
  )
  expect(textOfTruncated(truncated).length).toBeLessThanOrEqual(MAX_RESULT_LENGTH)
  expect(textOfTruncated(truncated).length).toBeGreaterThan(MAX_RESULT_LENGTH - 500)
  expect(isTruncatedResult(JSON.parse(JSON.stringify(truncated)))).toBe(true)
})

test('COST-11: what was truncated once is not truncated again', () => {
  const once = truncateText('x'.repeat(3 * MAX_RESULT_LENGTH), { ref: REF })
  expect(truncateText(once, { ref: 'another' })).toBe(once)
})

test('LOSS-8: head and tail are cut between characters, and the offset counts characters', () => {
  for (const before of ['', 'a']) {
    const text = before + '😀'.repeat(2_000)
    const { head, tail, note, characters } = truncateResult(text, { ref: REF, maxLength: 1_001 }) ?? {}
    if (head === undefined || tail === undefined) throw new Error('not truncated')
    expect(head.isWellFormed() && tail.isWellFormed()).toBe(true)
    expect(characters).toBe(characterCount(text))
    expect(note).toContain(`"offset": ${characterCount(head)} })`)
  }
})

test('without a ref nothing says where to read on', () => {
  const shown = truncateText('x'.repeat(2_000), { maxLength: 1_000 })
  expect(shown).toContain('of 2000 characters are left out here.]')
  expect(asksToReadOn(shown)).toBe(false)
  expect(asksToReadOn(truncateText('x'.repeat(2_000), { maxLength: 1_000, ref: REF }))).toBe(true)
})

test('a value of a tool that only looks a little like it is none', () => {
  for (const value of [null, 'text', { truncated: true }, { truncated: true, head: 'a', tail: 'b', more: 1 }])
    expect(isTruncatedResult(value)).toBe(false)
})
