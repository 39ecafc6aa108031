import type { UIMessageChunk } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { newId } from '@offshoot/shared/ids'
import { type OwnRedis, startOwnRedis } from '@offshoot/testing/own-redis'
import { redisCommand } from '@offshoot/testing/redis-command'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { createLiveWriters, type LiveWriter } from '../src/live-writer.ts'

let redis: OwnRedis
let stage: TestStage

beforeAll(async () => {
  redis = await startOwnRedis()
  stage = await openTestStage({ environment: { REDIS_URL: redis.url } })
  await waitUntil(() => stage.runtime.signals.pulse.isOk())
})

afterAll(async () => {
  await stage.close()
  await redis.stop()
})

function open(jobId: string, attempt = 1, onFenced: () => void = () => undefined): LiveWriter {
  return createLiveWriters(stage.runtime).open({ jobId, generation: 1, attempt, onFenced })
}

const delta = (text: string, id = 't'): UIMessageChunk => ({ type: 'text-delta', id, delta: text })

const batchesOf = async (jobId: string) =>
  (await stage.runtime.liveStreams.read(jobId, 0)).map(({ firstSeq, chunks }) => ({ firstSeq, chunks }))

/** What is written before this goes out at once, together. */
const nextMoment = () => new Promise((resolve) => setImmediate(resolve))

test('the first frames go out at once, what follows within the interval goes together', async () => {
  const jobId = newId()
  const live = open(jobId)
  live.write({ type: 'start', messageId: jobId })
  await nextMoment()
  expect(await batchesOf(jobId)).toEqual([])
  live.write({ type: 'start-step' })
  await nextMoment()
  for (const text of ['He', 'll', 'o']) live.write(delta(text))
  live.write({ type: 'text-end', id: 't' })
  await live.flush()
  expect(await batchesOf(jobId)).toEqual([
    { firstSeq: 1, chunks: [{ type: 'start', messageId: jobId }, { type: 'start-step' }] },
    { firstSeq: 3, chunks: [delta('Hello'), { type: 'text-end', id: 't' }] },
  ])
})

test('frames that nobody flushes go out by themselves', async () => {
  const jobId = newId()
  const live = open(jobId)
  live.write(delta('one '))
  await nextMoment()
  live.write(delta('two'))
  expect(await waitUntil(async () => (await batchesOf(jobId)).length === 2)).toBe(true)
})

test('only deltas of one id, one kind and without metadata are joined', async () => {
  const jobId = newId()
  const live = open(jobId)
  live.write({ type: 'start-step' })
  await nextMoment()
  const apart: UIMessageChunk[] = [
    delta('a', '1'),
    delta('b', '2'),
    { type: 'reasoning-delta', id: '2', delta: 'c' },
    { ...delta('d', '2'), providerMetadata: { openai: { n: 1 } } } as UIMessageChunk,
    { type: 'tool-input-delta', toolCallId: 'x', inputTextDelta: '{"a":1}' },
    { type: 'tool-input-delta', toolCallId: 'y', inputTextDelta: '{' },
  ]
  for (const chunk of apart) live.write(chunk)
  live.write({ type: 'tool-input-delta', toolCallId: 'y', inputTextDelta: '}' })
  await live.flush()
  expect((await batchesOf(jobId))[1]?.chunks).toEqual([
    ...apart.slice(0, -1),
    { type: 'tool-input-delta', toolCallId: 'y', inputTextDelta: '{}' },
  ])
})

test('each batch is signalled to viewers', async () => {
  const jobId = newId()
  let signals = 0
  const unsubscribe = await stage.runtime.signals.subscribe(`live:${jobId}`, () => (signals += 1))
  const live = open(jobId)
  live.write(delta('a'))
  await nextMoment()
  live.write(delta('b'))
  await live.flush()
  expect(await waitUntil(() => signals === 2)).toBe(true)
  unsubscribe()
})

test('STATE-7: the frames of an attempt are refused once a newer one has written, and it is told', async () => {
  const jobId = newId()
  let fenced = 0
  const old = open(jobId, 1, () => (fenced += 1))
  const young = open(jobId, 2)
  old.write(delta('old'))
  await old.flush()
  young.write(delta('young'))
  await young.flush()
  old.write(delta('older'))
  await old.flush()
  old.write(delta('oldest'))
  await old.flush()
  expect(fenced).toBe(1)
  expect((await batchesOf(jobId)).flatMap(({ chunks }) => chunks)).toEqual([delta('old'), delta('young')])
})

test('a flush waits at most half a second for a Redis that does not answer; the frames come later', async () => {
  const jobId = newId()
  const live = open(jobId)
  await redisCommand(redis.url, 'CLIENT', 'PAUSE', '900', 'ALL')
  live.write(delta('slow'))
  const before = performance.now()
  await live.flush()
  expect(performance.now() - before).toBeLessThan(800)
  await waitUntil(async () => (await batchesOf(jobId)).length === 1)
})

test('LOSS-15: a flush does not wait for a Redis that is full; the frames come when there is room', async () => {
  const jobId = newId()
  const live = open(jobId)
  await redisCommand(redis.url, 'CONFIG', 'SET', 'maxmemory', '1mb')
  live.write(delta('kept'))
  const before = performance.now()
  await live.flush()
  expect(performance.now() - before).toBeLessThan(400)
  expect(await batchesOf(jobId)).toEqual([])
  await redisCommand(redis.url, 'CONFIG', 'SET', 'maxmemory', '0')
  await waitUntil(async () => (await batchesOf(jobId)).length === 1)
})

test('UX-5: what is written while a batch is on its way is kept up to a limit', async () => {
  const jobId = newId()
  const live = open(jobId)
  live.write({ type: 'start-step' })
  await nextMoment()
  for (let at = 1; at < 5_000; at += 1) live.write({ type: 'start-step' })
  await live.flush()
  const written = (await batchesOf(jobId)).flatMap(({ chunks }) => chunks).length
  expect(written).toBe(2_001)
})

test('a batch that is sent again, since its answer was lost, is appended once; numbers go on after Redis was emptied', async () => {
  const jobId = newId()
  const { liveStreams } = stage.runtime
  const batch = { generation: 1, attempt: 1, number: 1, chunks: [delta('a'), delta('b')] }
  expect(await liveStreams.append(jobId, batch)).toBe(2)
  expect(await liveStreams.append(jobId, batch)).toBe(2)
  expect((await batchesOf(jobId)).flatMap(({ chunks }) => chunks)).toHaveLength(2)
  await redisCommand(redis.url, 'FLUSHALL')
  expect(await liveStreams.append(jobId, { ...batch, number: 2, afterSeq: 2 })).toBe(4)
})

test('an attempt that makes a step again takes back what the one before had said of it, and nothing else', async () => {
  const jobId = newId()
  const first = open(jobId)
  const step: UIMessageChunk[] = [{ type: 'start-step' }, delta('whole'), { type: 'finish-step' }]
  for (const chunk of [...step, { type: 'start-step' } as const, delta('cut')]) first.write(chunk)
  await first.flush()
  const second = open(jobId, 2)
  second.restartStep()
  second.write({ type: 'start-step' })
  await second.flush()
  const chunks = (await batchesOf(jobId)).flatMap((batch) => batch.chunks)
  expect(chunks).toEqual([...step, { type: 'start-step' }])
})

test('what was written while the connection was cut comes once it is back, whole and once', async () => {
  const jobId = newId()
  const live = open(jobId)
  live.write(delta('0 '))
  await live.flush()
  await redisCommand(redis.url, 'CLIENT', 'KILL', 'TYPE', 'normal')
  for (let at = 1; at <= 20; at += 1) live.write(delta(`${at} `))
  const text = await waitUntil(async () => {
    const chunks = (await batchesOf(jobId)).flatMap((batch) => batch.chunks)
    const said = chunks.map((chunk) => (chunk.type === 'text-delta' ? chunk.delta : '')).join('')
    return said.endsWith('20 ') && said
  })
  expect(text).toBe(Array.from({ length: 21 }, (_, at) => `${at} `).join(''))
})

/** Writers whose batches are refused until the test says otherwise, and when they were tried. */
function openRefused(jobId: string, options: { leftoverLimitMs?: number } = {}) {
  const { liveStreams } = stage.runtime
  const tries: number[] = []
  const refusing = { on: true }
  const refusable: typeof liveStreams = {
    ...liveStreams,
    async append(id, batch) {
      if (id === jobId) tries.push(performance.now())
      if (id === jobId && refusing.on) throw new Error('refused')
      return liveStreams.append(id, batch)
    },
  }
  const writers = createLiveWriters({ ...stage.runtime, liveStreams: refusable }, options)
  const live = writers.open({ jobId, generation: 1, attempt: 1, onFenced: () => undefined })
  return { writers, live, tries, refusing }
}

test('what Redis does not take is tried less and less often, and comes whole once it does', async () => {
  const jobId = newId()
  const { live, tries, refusing } = openRefused(jobId)
  live.write(delta('0 '))
  await nextMoment()
  for (let at = 1; at < 10; at += 1) live.write(delta(`${at} `))
  await waitUntil(() => tries.length === 8)
  const [first = 0, last = 0] = [tries[0], tries[7]]
  expect(last - first).toBeGreaterThan(1_000)
  refusing.on = false
  await waitUntil(async () => (await batchesOf(jobId)).length === 2)
  expect((await batchesOf(jobId)).flatMap(({ chunks }) => chunks)).toEqual([delta('0 '), delta('1 2 3 4 5 6 7 8 9 ')])
})

test('what an attempt that is over could not send is given up after a while', async () => {
  const jobId = newId()
  const { writers, live, tries, refusing } = openRefused(jobId, { leftoverLimitMs: 300 })
  live.write(delta('unsaid'))
  await waitUntil(() => tries.length === 2)
  live.end()
  // Another job of the process keeps the writers' clock going.
  const other = newId()
  const busy = writers.open({ jobId: other, generation: 1, attempt: 1, onFenced: () => undefined })
  await waitUntil(() => {
    busy.write(delta('x'))
    return performance.now() - (tries.at(-1) ?? 0) > 1_000
  })
  refusing.on = false
  busy.write(delta('y'))
  await busy.flush()
  expect(await batchesOf(jobId)).toEqual([])
})

test('an attempt that is over still sends what it has', async () => {
  const jobId = newId()
  const live = open(jobId)
  live.write(delta('one '))
  await nextMoment()
  live.write(delta('two'))
  live.end()
  expect(await waitUntil(async () => (await batchesOf(jobId)).length === 2)).toBe(true)
})

test('with Redis away a flush does not wait, and nothing throws', async () => {
  await redis.stop()
  await waitUntil(() => !stage.runtime.signals.pulse.isOk())
  const live = open(newId())
  for (let at = 0; at < 100; at += 1) live.write(delta('x'))
  const before = performance.now()
  await live.flush()
  expect(performance.now() - before).toBeLessThan(400)
})
