import { expect, test } from 'vitest'
import { decodeStored, encodeStored, encodeStoredJson, storedText } from './stored-value.ts'

/** There and back, through real JSON text as Postgres keeps it. */
const roundTrip = (value: unknown): unknown => decodeStored(JSON.parse(encodeStoredJson(value)))

test('plain JSON passes through untouched', () => {
  const value = { a: [1, 'two', true, null, { b: [] }], empty: {}, zero: 0, text: '', no: false }
  expect(encodeStored(value)).toEqual(value)
  expect(roundTrip(value)).toEqual(value)
})

test('dates, bytes, bigints and URLs come back as what they were', () => {
  const value = {
    date: new Date('2026-11-30T12:34:56.789Z'),
    bytes: new Uint8Array([0, 1, 254, 255]),
    big: 9_007_199_254_740_993n,
    negative: -1n,
    url: new URL('https://example.com/a?b=c#d'),
    inList: [new Date(0), 1n],
  }
  expect(roundTrip(value)).toEqual(value)
})

test('an invalid date stays an invalid date', () => {
  const back = roundTrip(new Date(Number.NaN))
  expect(back).toBeInstanceOf(Date)
  expect(Number(back)).toBeNaN()
})

test('buffers, views into a larger buffer and array buffers come back as exactly their bytes', () => {
  const bytes = new Uint8Array([9, 1, 2, 3, 9])
  expect(roundTrip(Buffer.from('äö'))).toEqual(new Uint8Array(Buffer.from('äö')))
  expect(roundTrip(bytes.subarray(1, 4))).toEqual(new Uint8Array([1, 2, 3]))
  expect(roundTrip(new DataView(bytes.buffer, 1, 2))).toEqual(new Uint8Array([1, 2]))
  expect(roundTrip(bytes.buffer)).toEqual(bytes)
})

test('an error comes back as an error with its name, its message and the chain of its causes', () => {
  class ProviderError extends Error {
    override name = 'ProviderError'
  }
  const error = new ProviderError('no answer', { cause: new TypeError('fetch failed', { cause: 'ECONNRESET' }) })
  const back = roundTrip({ error }) as { error: Error }
  expect(back.error).toBeInstanceOf(Error)
  expect(back.error).toMatchObject({ name: 'ProviderError', message: 'no answer' })
  expect(back.error.cause).toMatchObject({ name: 'TypeError', message: 'fetch failed', cause: 'ECONNRESET' })
  expect('cause' in (roundTrip(new Error('alone')) as Error)).toBe(false)
})

test('LOSS-19: NaN and the infinities become null, and undefined is left out', () => {
  expect(roundTrip({ a: Number.NaN, b: Infinity, c: -Infinity, d: undefined, e: 1 })).toEqual({
    a: null,
    b: null,
    c: null,
    e: 1,
  })
  expect('d' in Object(roundTrip({ d: undefined }))).toBe(false)
  expect(roundTrip([undefined, () => 1, Symbol('x'), Number.NaN])).toEqual([null, null, null, null])
  expect(roundTrip(undefined)).toBeNull()
})

test('STATE-24: null, false, 0, the empty text and an absent value are told apart', () => {
  for (const value of [null, false, 0, '']) expect(roundTrip({ value })).toStrictEqual({ value })
  expect(roundTrip({ value: undefined })).toStrictEqual({})
})

test('LOSS-7: U+0000 in texts, keys and errors is stored legibly', () => {
  expect(storedText('a\u0000b\u0000')).toBe('a␀b␀')
  const json = encodeStoredJson({
    'key\u0000': ['in\u0000side'],
    error: new Error('bad\u0000', { cause: 'why\u0000' }),
  })
  expect(json).not.toMatch(/\\u0000|\0/)
  const back = decodeStored(JSON.parse(json))
  expect(back).toMatchObject({ 'key␀': ['in␀side'], error: { message: 'bad␀', cause: 'why␀' } })
})

test('LOSS-8: half of a surrogate pair becomes U+FFFD, a whole emoji stays', () => {
  expect(storedText('a\ud83d')).toBe('a\ufffd')
  expect(storedText('\ude00b')).toBe('\ufffdb')
  expect(storedText('😀')).toBe('😀')
  expect(roundTrip({ 'k\ud83d': 'v\ude00', whole: '👩‍👩‍👧' })).toEqual({ 'k\ufffd': 'v\ufffd', whole: '👩‍👩‍👧' })
})

test('SEC-9: keys named __proto__ and constructor are plain fields, there and back', () => {
  const value: unknown = JSON.parse('{"__proto__":{"admin":true},"constructor":"c","toString":1}')
  const back = roundTrip(value)
  expect(JSON.stringify(back)).toBe(JSON.stringify(value))
  expect(Object.getPrototypeOf(back)).toBe(Object.prototype)
  expect(Object(back).admin).toBeUndefined()
})

test('an object that has the tag key itself comes back as that object', () => {
  const values = [
    { $offshoot: 'date', value: 'not a date' },
    { $offshoot: 'bigint', value: 'x', more: [1n] },
    { $offshoot: 'object', value: [['a', 1]] },
    { $offshoot: { $offshoot: 'error', message: 'm' } },
    { $offshoot: null },
    { outer: [{ $offshoot: 'url', value: 'no url', inner: new Date(5) }] },
  ]
  for (const value of values) expect(roundTrip(value)).toEqual(value)
})

test('an object that has the tag key and a __proto__ field keeps both', () => {
  const value: unknown = JSON.parse('{"$offshoot":"bytes","__proto__":{"admin":true}}')
  expect(JSON.stringify(roundTrip(value))).toBe(JSON.stringify(value))
})

test('STATE-19: provider metadata and the order of keys are untouched', () => {
  const part = {
    type: 'reasoning',
    id: 'rs_1:0',
    providerMetadata: {
      openai: { reasoningEncryptedContent: 'gAAAAAB=='.repeat(50), itemId: 'rs_1', phase: null, nested: { a: [[1]] } },
      anthropic: { signature: 'EqQB', cacheControl: { type: 'ephemeral' } },
    },
  }
  expect(encodeStoredJson(part)).toBe(JSON.stringify(part))
  expect(roundTrip(part)).toEqual(part)
})

test('a cycle is cut, and a value that occurs twice is stored twice', () => {
  const shared = { a: 1 }
  expect(roundTrip({ x: shared, y: [shared] })).toEqual({ x: { a: 1 }, y: [{ a: 1 }] })
  const cycle: Record<string, unknown> = { name: 'loop' }
  cycle['self'] = cycle
  expect(roundTrip(cycle)).toEqual({ name: 'loop', self: '[circular]' })
  const error = new Error('round')
  error.cause = error
  expect(roundTrip(error)).toMatchObject({ message: 'round', cause: '[circular]' })
})

test('a value that is nested too deep to be read back is cut there', () => {
  let value: unknown = 'bottom'
  for (let depth = 0; depth < 100_000; depth += 1) value = depth % 2 === 0 ? [value] : { in: value }
  const json = encodeStoredJson(value)
  expect(json).toContain('[too deep]')
  expect(json.length).toBeLessThan(10_000)
  expect(roundTrip([[[1]]])).toEqual([[[1]]])
})

test('a value with a toJSON of its own is stored as that', () => {
  expect(roundTrip({ point: { toJSON: () => ({ x: 1n }) } })).toEqual({ point: { x: 1n } })
})

test('a tag that a newer format may bring is left as it is', () => {
  const stored = { $offshoot: 'regexp', value: 'a+' }
  expect(decodeStored(stored)).toEqual(stored)
})
