import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { expect, test } from 'vitest'
import { createUniqueCallIds } from './unique-call-ids.ts'

type Part = LanguageModelV4StreamPart

const input = (id: string, delta: string): Part[] => [
  { type: 'tool-input-start', id, toolName: 'look' },
  { type: 'tool-input-delta', id, delta },
  { type: 'tool-input-end', id },
]
const call = (toolCallId: string, text: string): Part => ({
  type: 'tool-call',
  toolCallId,
  toolName: 'look',
  input: text,
})

test('STATE-10: calls of a step that have the same id are told apart; all else stays as it is', () => {
  const text: Part = { type: 'text-delta', id: 'c', delta: 'x' }
  const parts = [
    text,
    ...input('c', '1'),
    call('c', '1'),
    ...input('c', '2'),
    call('c', '2'),
    call('c', '3'),
    call('d', '4'),
  ]
  expect(parts.map(createUniqueCallIds())).toEqual([
    text,
    ...input('c', '1'),
    call('c', '1'),
    ...input('c_2', '2'),
    call('c_2', '2'),
    call('c_3', '3'),
    call('d', '4'),
  ])
})

test('an id that is made is none that an endpoint has used; a result goes to the newest call', () => {
  const result: Part = { type: 'tool-result', toolCallId: 'c', toolName: 'web', result: 1 }
  expect([call('c_2', '1'), call('c', '2'), call('c', '3'), result].map(createUniqueCallIds())).toEqual([
    call('c_2', '1'),
    call('c', '2'),
    call('c_3', '3'),
    { ...result, toolCallId: 'c_3' },
  ])
})
