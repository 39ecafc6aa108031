import { expect, test } from 'vitest'
import { pause, untilAborted } from './pause.ts'

test('a pause ends when its time is over', async () => {
  const before = performance.now()
  await pause(30, new AbortController().signal)
  expect(performance.now() - before).toBeGreaterThanOrEqual(25)
})

test('COST-9: a pause ends at once when its signal is aborted, with the signal’s reason', async () => {
  const controller = new AbortController()
  const paused = pause(60_000, controller.signal)
  controller.abort(new Error('enough'))
  await expect(paused).rejects.toThrow('enough')
})

test('a pause under an aborted signal does not begin', async () => {
  await expect(pause(60_000, AbortSignal.abort(new Error('enough')))).rejects.toThrow('enough')
})

test('what is done before the abort counts', async () => {
  await expect(untilAborted(Promise.resolve('done'), new AbortController().signal)).resolves.toBe('done')
  await expect(untilAborted(Promise.reject(new Error('broken')), new AbortController().signal)).rejects.toThrow(
    'broken',
  )
})

test('STUCK-10: what never settles is left at the abort', async () => {
  const controller = new AbortController()
  const waiting = untilAborted(new Promise(() => undefined), controller.signal)
  controller.abort(new Error('enough'))
  await expect(waiting).rejects.toThrow('enough')
  await expect(untilAborted(new Promise(() => undefined), controller.signal)).rejects.toThrow('enough')
})
