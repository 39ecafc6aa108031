import { expect, test } from 'vitest'
import { withoutEmptyOptions } from './without-empty-options.ts'

test('empty strings, lists, objects and nulls of a model count as absent, at every depth', () => {
  const filled = {
    message: 'go',
    runAsUserId: '',
    completionEvent: {},
    timeoutSeconds: null,
    overrides: { modelOverride: '', toolFilter: [], temperature: 0, nested: { deeper: { empty: '' } } },
  }
  expect(withoutEmptyOptions(filled)).toEqual({ message: 'go', overrides: { temperature: 0 } })
})

test('an object whose every field was empty is absent itself', () => {
  expect(withoutEmptyOptions({ overrides: { modelOverride: '', toolFilter: [] } })).toEqual({})
})

test('a required field stays, empty or not; inside it empty fields count as absent, too', () => {
  expect(withoutEmptyOptions({ message: '', bot: {}, mode: '' }, ['message', 'bot'])).toEqual({ message: '', bot: {} })
  const bothForms = { bot: { botId: '', botGroup: 'forge', botHandle: 'writer' } }
  expect(withoutEmptyOptions(bothForms, ['bot'])).toEqual({ bot: { botGroup: 'forge', botHandle: 'writer' } })
})

test('false, 0 and lists with something in them are kept', () => {
  const input = { notifyParent: false, temperature: 0, toolFilter: [''] }
  expect(withoutEmptyOptions(input)).toEqual(input)
})

test('what is no object comes back as it is', () => {
  for (const value of [null, undefined, '', 'text', 3, [], ['a']]) expect(withoutEmptyOptions(value)).toBe(value)
})

test('SEC-9: a field named __proto__ stays a field, and the input stays untouched', () => {
  const input: unknown = JSON.parse('{"__proto__":{"admin":true},"constructor":{"name":"x"},"empty":""}')
  const output = withoutEmptyOptions(input)
  expect(Object.keys(Object(output))).toEqual(['__proto__', 'constructor'])
  expect(Object.getPrototypeOf(output)).toBe(Object.prototype)
  expect(Object.keys(Object(input))).toEqual(['__proto__', 'constructor', 'empty'])
})
