// How large live streams become: a cap while the job runs, next to nothing once it has ended.
import { type OwnRedis, startOwnRedis } from '@offshoot/testing/own-redis'
import { redisCommand } from '@offshoot/testing/redis-command'
import type { UIMessageChunk } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { loadConfig } from '../src/config.ts'
import { newId } from '../src/ids.ts'
import { createLogger } from '../src/logger.ts'
import { type LiveStreams, type NewBatch, openLiveStreams } from '../src/queue/live-streams.ts'

let redis: OwnRedis
let streams: LiveStreams
beforeAll(async () => {
  redis = await startOwnRedis()
  const config = loadConfig({ DATABASE_URL: 'postgresql://nowhere/none', REDIS_URL: redis.url })
  streams = openLiveStreams(config, createLogger({ level: 'error', name: 'test' }))
})
afterAll(async () => {
  await streams.close()
  await redis.stop()
})

const text = (length: number): UIMessageChunk => ({ type: 'text-delta', id: 't', delta: 'x'.repeat(length) })
const FINISH: UIMessageChunk = { type: 'finish', finishReason: 'stop' }

/** Appends batches as an attempt does. */
function writer(jobId = newId(), attempt = 1) {
  let number = 0
  return {
    jobId,
    append: (chunks: UIMessageChunk[], more: Partial<NewBatch> = {}) =>
      streams.append(jobId, { generation: 1, attempt, number: (number += 1), chunks, ...more }),
  }
}

const kept = async (jobId: string) => {
  const batches = await streams.read(jobId, 0, 10_000)
  return { batches, bytes: batches.reduce((sum, { chunks }) => sum + JSON.stringify(chunks).length, 0) }
}

test('LOSS-20: a running job keeps its newest megabyte of frames; numbers go on', async () => {
  const { jobId, append } = writer()
  for (let at = 1; at <= 60; at += 1) expect(await append([text(50_000)])).toBe(at)
  const { batches, bytes } = await kept(jobId)
  expect(bytes).toBeLessThanOrEqual(1_000_000)
  expect(bytes).toBeGreaterThan(900_000)
  expect(batches.at(-1)?.firstSeq).toBe(60)
  expect(batches.map(({ firstSeq }) => firstSeq)).toEqual(Array.from(batches, (_, at) => 61 - batches.length + at))
})

test('LOSS-20: small batches are limited by their number', async () => {
  const { jobId, append } = writer()
  await Promise.all(Array.from({ length: 5_200 }, () => append([{ type: 'start-step' }])))
  expect((await kept(jobId)).batches).toHaveLength(5_000)
})

test('LOSS-20: the newest batch stays, however large, until the next comes', async () => {
  const { jobId, append } = writer()
  await append([text(10)])
  await append([text(3_000_000)])
  expect((await kept(jobId)).batches.map(({ firstSeq }) => firstSeq)).toEqual([2])
  await append([text(10)])
  expect((await kept(jobId)).batches.map(({ firstSeq }) => firstSeq)).toEqual([3])
})

test('LOSS-20: the end of a job leaves at most 16 KB of it, with the end itself', async () => {
  const { jobId, append } = writer()
  for (let at = 0; at < 300; at += 1) await append([text(1_000)])
  const before = Number(await redisCommand(redis.url, 'MEMORY', 'USAGE', `offshoot:live:{${jobId}}`, 'SAMPLES', '0'))
  await append([FINISH], { end: true })
  const { batches, bytes } = await kept(jobId)
  expect(bytes).toBeLessThanOrEqual(16_000)
  expect(bytes).toBeGreaterThan(14_000)
  expect(batches.at(-1)).toMatchObject({ end: true, chunks: [FINISH] })
  const after = Number(await redisCommand(redis.url, 'MEMORY', 'USAGE', `offshoot:live:{${jobId}}`, 'SAMPLES', '0'))
  expect(before).toBeGreaterThan(300_000)
  expect(after).toBeLessThan(40_000)
})

/** How long the keys of a stream have left to live, in whole minutes. */
async function minutesLeft(jobId: string): Promise<number[]> {
  const keys = [`offshoot:live:{${jobId}}`, `offshoot:live:{${jobId}}:fence`]
  const seconds = await Promise.all(keys.map((key) => redisCommand(redis.url, 'TTL', key)))
  return seconds.map((each) => Math.ceil(Number(each) / 60))
}

test('UX-9: nothing of a live stream stays for ever: each attempt gives it 25 hours, the end of the job one', async () => {
  const { jobId, append } = writer()
  await append([{ type: 'start', messageId: jobId }])
  expect(await minutesLeft(jobId)).toEqual([25 * 60, 25 * 60])
  for (const key of [`offshoot:live:{${jobId}}`, `offshoot:live:{${jobId}}:fence`])
    await redisCommand(redis.url, 'EXPIRE', key, '600')
  const second = writer(jobId, 2)
  await second.append([text(10)])
  expect(await minutesLeft(jobId)).toEqual([25 * 60, 25 * 60])
  await second.append([FINISH], { end: true })
  expect(await minutesLeft(jobId)).toEqual([60, 60])
  // An operator's retry writes on.
  await writer(jobId).append([text(10)], { generation: 2 })
  expect(await minutesLeft(jobId)).toEqual([25 * 60, 25 * 60])
})

test('UX-9: nor does one that is nothing but its end', async () => {
  const { jobId, append } = writer()
  await append([FINISH], { end: true })
  expect(await minutesLeft(jobId)).toEqual([60, 60])
})

test('a short job keeps all its frames after its end', async () => {
  const { jobId, append } = writer()
  await append([{ type: 'start', messageId: jobId }])
  for (let at = 0; at < 100; at += 1) await append([text(20)])
  await append([FINISH], { end: true })
  expect((await kept(jobId)).batches).toHaveLength(102)
})

test('what an attempt takes back does not count any more', async () => {
  const first = writer()
  for (let at = 0; at < 18; at += 1) await first.append([text(50_000)])
  const second = writer(first.jobId, 2)
  await second.append([text(50_000)], { restartsStep: true })
  for (let at = 0; at < 17; at += 1) await second.append([text(50_000)])
  // 18 batches of 50 KB are less than a megabyte: nothing of the second attempt had to go.
  expect((await kept(first.jobId)).batches).toHaveLength(18)
})

test('the index of the step that begins in a batch comes along', async () => {
  const { jobId, append } = writer()
  await append([{ type: 'start', messageId: jobId }, { type: 'start-step' }], { startsStep: 0 })
  await append([{ type: 'finish-step' }])
  await append([{ type: 'start-step' }], { startsStep: 1 })
  expect((await kept(jobId)).batches.map(({ startsStep }) => startsStep)).toEqual([0, undefined, 1])
})
