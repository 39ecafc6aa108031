import { expect, test } from 'vitest'
import { delaysOf, planOf, readPlan } from './plan.ts'
import { tableOf } from './report.ts'
import { type Target, TARGETS, verdictOn } from './targets.ts'
import { median, percentile, summarize } from './workload.ts'

test('a median is the middle value, or the mean of the two in the middle', () => {
  expect(median([3, 1, 2])).toBe(2)
  expect(median([4, 1, 2, 3])).toBe(2.5)
  expect(median([])).toBeNaN()
})

test('a percentile is the smallest value that so many do not exceed', () => {
  const hundred = Array.from({ length: 100 }, (_, at) => 100 - at)
  expect(percentile(hundred, 0.5)).toBe(50)
  expect(percentile(hundred, 0.99)).toBe(99)
  expect(percentile([7], 0.99)).toBe(7)
  expect(percentile([], 0.5)).toBeNaN()
})

test('a figure reaches its aim, its must, or neither', () => {
  const less: Target = { figure: 'a.less', better: 'less', must: 10, aim: 5 }
  const more: Target = { figure: 'a.more', better: 'more', must: 5, aim: 10 }
  expect([5, 5.1, 10, 10.1].map((value) => verdictOn(less, value))).toEqual([
    'aim reached',
    'must reached',
    'must reached',
    'MISSED',
  ])
  expect([10, 9, 5, 4].map((value) => verdictOn(more, value))).toEqual([
    'aim reached',
    'must reached',
    'must reached',
    'MISSED',
  ])
  expect(verdictOn(less, NaN)).toBe('MISSED')
})

test('an aim is at least as good as the must', () => {
  for (const target of TARGETS) expect(verdictOn(target, target.aim), target.figure).toBe('aim reached')
  for (const { figure, better, must, aim } of TARGETS)
    expect(better === 'less' ? aim <= must : aim >= must, figure).toBe(true)
})

test('a table has the median, the spread, and the verdict where there is a target', () => {
  const figures = summarize([{ commitsPerJob: 9 }, { commitsPerJob: 7 }, { commitsPerJob: 8 }])
  expect(tableOf('throughput', figures)).toMatch(/commitsPerJob +8 +7 … 9 +must ≤ 6, aim ≤ 4 +MISSED/)
})

test('a plan survives its way through an agent’s message', () => {
  const plan = planOf('parent', { steps: 4, heldStep: 1, children: [planOf('child', { everyMs: 50, stamped: true })] })
  expect(readPlan(JSON.stringify(plan))).toEqual(plan)
  expect(() => readPlan('{"name":"half a plan"}')).toThrow('Invalid input')
})

test('each token of a stamped text tells how long it was on its way', () => {
  expect(delaysOf('1000.5 1020 ', 1030)).toEqual([29.5, 10])
  expect(delaysOf('', 1030)).toEqual([])
})
