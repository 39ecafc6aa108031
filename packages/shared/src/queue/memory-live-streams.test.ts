import type { UIMessageChunk } from 'ai'
import { expect, test } from 'vitest'
import { openMemoryLiveStreams } from './memory-live-streams.ts'

const chunks: UIMessageChunk[] = [{ type: 'start-step' }]
const batch = (number: number, end = false) => ({ generation: 1, attempt: 1, number, chunks, end })

test('UX-9: a stream goes five minutes after its end, one that was not ended an hour after its last batch', async () => {
  let now = 0
  const live = openMemoryLiveStreams(() => now)
  await live.append('ended', batch(1, true))
  await live.append('open', batch(1))
  const lengths = async () => [(await live.read('ended', 0)).length, (await live.read('open', 0)).length]
  now = 299_000
  await live.append('another', batch(1, true))
  expect(await lengths()).toEqual([1, 1])
  now = 301_000
  await live.append('another', batch(2, true))
  expect(await lengths()).toEqual([0, 1])
  now = 3_601_000
  await live.append('another', batch(3, true))
  expect(await lengths()).toEqual([0, 0])
})

test('UX-9: a stream keeps its newest 5,000 batches', async () => {
  const live = openMemoryLiveStreams()
  for (let number = 1; number <= 5_010; number += 1) await live.append('long', batch(number))
  expect((await live.read('long', 0, 10_000)).map(({ firstSeq }) => firstSeq).slice(0, 2)).toEqual([11, 12])
  expect(await live.read('long', 0, 10_000)).toHaveLength(5_000)
})
