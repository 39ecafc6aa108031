import { expect, test } from 'vitest'
import { characterCount, headOf, tailOf } from './text.ts'

test('characters are counted by code point', () => {
  expect(characterCount('')).toBe(0)
  expect(characterCount('abc')).toBe(3)
  expect(characterCount('😀')).toBe(1)
  expect(characterCount('a😀b😀')).toBe(4)
  expect(characterCount('\ud83d')).toBe(1)
  expect(characterCount('\ude00\ud83d')).toBe(2)
})

test('LOSS-8: the head of a text never ends with half an emoji', () => {
  expect(headOf('a😀b', 4)).toBe('a😀b')
  expect(headOf('a😀b', 3)).toBe('a😀')
  expect(headOf('a😀b', 2)).toBe('a')
  expect(headOf('a😀b', 1)).toBe('a')
  expect(headOf('😀', 1)).toBe('')
})

test('LOSS-8: the tail of a text never begins with half an emoji', () => {
  expect(tailOf('a😀b', 4)).toBe('a😀b')
  expect(tailOf('a😀b', 3)).toBe('😀b')
  expect(tailOf('a😀b', 2)).toBe('b')
  expect(tailOf('😀', 1)).toBe('')
})

test('LOSS-8: cut anywhere, head and tail of an emoji text are well-formed and no longer than asked', () => {
  const text = '😀é👩‍👩‍👧x'.repeat(5)
  for (let length = 0; length <= text.length + 1; length += 1) {
    for (const cut of [headOf(text, length), tailOf(text, length)]) {
      expect(cut.isWellFormed()).toBe(true)
      expect(cut.length).toBeLessThanOrEqual(length)
      expect(cut.length).toBeGreaterThanOrEqual(Math.min(length, text.length) - 1)
    }
  }
})
