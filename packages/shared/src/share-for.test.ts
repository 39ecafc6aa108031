import { expect, test, vi } from 'vitest'
import { shareFor } from './share-for.ts'

test('those who ask within the time, or while the reading is under way, get one reading', async () => {
  vi.useFakeTimers()
  try {
    let readings = 0
    const readingMs = [5_000, 0, 0]
    const read = shareFor(1_000, async () => {
      readings += 1
      await new Promise((resolve) => setTimeout(resolve, readingMs[readings - 1]))
      return readings
    })
    const asked = [read(), read()]
    await vi.advanceTimersByTimeAsync(4_999)
    asked.push(read())
    await vi.advanceTimersByTimeAsync(1)
    expect(await Promise.all(asked)).toEqual([1, 1, 1])
    const next = read()
    await vi.advanceTimersByTimeAsync(999)
    expect(await next).toBe(2)
    expect(await read()).toBe(2)
    await vi.advanceTimersByTimeAsync(1)
    const last = read()
    await vi.advanceTimersByTimeAsync(0)
    expect(await last).toBe(3)
  } finally {
    vi.useRealTimers()
  }
})

test('a failed reading is shared, and the next one is a new one', async () => {
  vi.useFakeTimers()
  try {
    let readings = 0
    const read = shareFor(100, async () => {
      readings += 1
      throw new Error(`reading ${readings}`)
    })
    await expect(read()).rejects.toThrow('reading 1')
    await expect(read()).rejects.toThrow('reading 1')
    await vi.advanceTimersByTimeAsync(100)
    await expect(read()).rejects.toThrow('reading 2')
  } finally {
    vi.useRealTimers()
  }
})
