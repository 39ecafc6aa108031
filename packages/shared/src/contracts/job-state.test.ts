import { expect, test } from 'vitest'
import {
  isTerminal,
  JOB_STATES,
  LIVE_STATES,
  projectState,
  sourcesOf,
  TERMINAL_STATES,
  TRANSITIONS,
} from './job-state.ts'
import { REASON_CODES, REASONS } from './reason.ts'

test('every state is either live or terminal', () => {
  expect(new Set([...LIVE_STATES, ...TERMINAL_STATES])).toEqual(new Set(JOB_STATES))
  expect(JOB_STATES.filter(isTerminal)).toEqual([...TERMINAL_STATES])
})

test('a completed job is never left, a failed or aborted one only by a retry', () => {
  expect(TRANSITIONS.completed).toEqual([])
  expect(TRANSITIONS.failed).toEqual(['pending'])
  expect(TRANSITIONS.aborted).toEqual(['pending'])
})

test('a terminal state is written only from a live one', () => {
  for (const state of TERMINAL_STATES) expect(sourcesOf(state)).toEqual(['pending', 'running'])
})

test('running is reached from pending only, and a job of its own doing becomes pending from running only', () => {
  expect(sourcesOf('running')).toEqual(['pending'])
  expect(sourcesOf('pending')).toEqual(['running'])
})

test('a pending job shows as running once it has been claimed', () => {
  expect(projectState({ state: 'pending', attempt: 0 })).toBe('pending')
  expect(projectState({ state: 'pending', attempt: 1 })).toBe('running')
  for (const state of ['running', ...TERMINAL_STATES] as const) {
    expect(projectState({ state, attempt: 0 })).toBe(state)
    expect(projectState({ state, attempt: 3 })).toBe(state)
  }
})

test('every reason says in which terminal state it ends a job, and has a sentence', () => {
  expect(new Set(Object.keys(REASONS))).toEqual(new Set(REASON_CODES))
  for (const { state, sentence } of Object.values(REASONS)) {
    expect(isTerminal(state)).toBe(true)
    expect(sentence).toMatch(/^[A-Z].*\.$/)
  }
})

test('COST-5: aborts, total timeouts, refusals and budget ends are never retried', () => {
  const never = [
    'aborted_by_user',
    'aborted_by_parent',
    'timeout_total',
    'timeout_step',
    'model_refused',
    'budget',
  ] as const
  for (const reason of [...never, 'invalid_request', 'invalid_tool_input'] as const)
    expect(REASONS[reason].retry).toBe('never')
})
