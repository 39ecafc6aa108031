import { expect, test } from 'vitest'
import { createStopSwitch, RunStopped } from './run-stop.ts'

test('a run that nobody stops has no reason and a live signal', () => {
  const stopSwitch = createStopSwitch()
  expect(stopSwitch.reason()).toBeUndefined()
  expect(stopSwitch.signal.aborted).toBe(false)
})

test('the first reason wins, and its signal carries it', () => {
  const stopSwitch = createStopSwitch()
  stopSwitch.stop({ kind: 'deadline' })
  stopSwitch.stop({ kind: 'abort-wish' })
  expect(stopSwitch.reason()).toEqual({ kind: 'deadline' })
  expect(stopSwitch.signal.reason).toBeInstanceOf(RunStopped)
  expect(stopSwitch.signal.reason).toMatchObject({
    stop: { kind: 'deadline' },
    message: 'the run was stopped: deadline',
  })
})
