import { expect, test } from 'vitest'
import { createWaker } from './waker.ts'

test('a pause ends when its time is over', async () => {
  const before = performance.now()
  await createWaker().pause(30)
  expect(performance.now() - before).toBeGreaterThanOrEqual(25)
})

test('a wake during a pause ends it', async () => {
  const waker = createWaker()
  const pause = waker.pause(60_000)
  waker.wake()
  await expect(pause).resolves.toBeUndefined()
})

test('LOSS-12: a wake between two pauses ends the next one at once, and only that one', async () => {
  const waker = createWaker()
  waker.wake()
  waker.wake()
  await waker.pause(60_000)
  const before = performance.now()
  await waker.pause(30)
  expect(performance.now() - before).toBeGreaterThanOrEqual(25)
})

test('a wake that ended a pause does not end the next one', async () => {
  const waker = createWaker()
  const pause = waker.pause(60_000)
  waker.wake()
  await pause
  const before = performance.now()
  await waker.pause(30)
  expect(performance.now() - before).toBeGreaterThanOrEqual(25)
})
