import { waitUntil } from '@offshoot/testing/wait-until'
import { Redis } from 'ioredis'
import { readUIMessageStream, type UIMessage, type UIMessageChunk } from 'ai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ApiUnderTest, openApi } from './api-under-test.ts'
import { chunksOf, readEvents, textOf } from './event-stream.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
})
afterAll(() => api.close())

const START = (jobId: string): UIMessageChunk[] => [
  { type: 'start', messageId: jobId },
  { type: 'start-step' },
  { type: 'text-start', id: 't' },
]
const say = (delta: string): UIMessageChunk => ({ type: 'text-delta', id: 't', delta })
const REST: UIMessageChunk[] = [{ type: 'text-end', id: 't' }, { type: 'finish-step' }]

const follow = (jobId: string, headers: Record<string, string> = {}, query = '') =>
  api.call(`/v1/agents/${jobId}/stream${query}`, { as: 'alice', headers })

/** The parts that an unchanged chat builds from these chunks. */
async function messageOf(chunks: { type: string }[]): Promise<UIMessage['parts']> {
  let parts: UIMessage['parts'] = []
  for await (const message of readUIMessageStream({ stream: ReadableStream.from(chunks as UIMessageChunk[]) }))
    parts = message.parts
  return parts
}

/** A job that has said `one two three` and ended; its frames have the numbers 1 to 10. */
async function endedJob(): Promise<string> {
  const jobId = await api.spawn()
  const token = await api.claim(jobId)
  await api.play(jobId, [...START(jobId), say('one '), say('two ')])
  await api.play(jobId, [say('three'), ...REST])
  await api.storeStep(jobId, token, 'one two three')
  await api.finish(jobId, token, { result: 'one two three' })
  return jobId
}

describe('a live stream', () => {
  test('UX-1: has its first byte at once, before anything happens, and is neither cached, compressed nor buffered', async () => {
    const jobId = await api.spawn()
    const startedAt = performance.now()
    const response = await follow(jobId, { 'accept-encoding': 'gzip, br' })
    const events = readEvents(response)
    void events.next()
    await waitUntil(() => events.text() !== '')
    expect(performance.now() - startedAt).toBeLessThan(300)
    expect(Object.fromEntries(response.headers)).toMatchObject({
      'content-type': expect.stringContaining('text/event-stream'),
      'cache-control': 'no-cache, no-transform',
      'x-accel-buffering': 'no',
      'x-vercel-ai-ui-message-stream': 'v1',
      'x-agent-job-id': jobId,
    })
    expect(response.headers.get('content-encoding')).toBeNull()
    await events.cancel()
  })

  test('brings frames as they come, numbered, up to the end', async () => {
    const jobId = await api.spawn()
    const token = await api.claim(jobId)
    const events = readEvents(await follow(jobId))
    await api.play(jobId, START(jobId))
    expect(await events.next()).toEqual({ id: '1', data: JSON.stringify({ type: 'start', messageId: jobId }) })
    await events.next()
    await events.next()
    await api.play(jobId, [say('hello')])
    expect(await events.next()).toEqual({ id: '4', data: JSON.stringify(say('hello')) })
    await api.play(jobId, REST)
    await api.finish(jobId, token)
    const rest = await events.rest()
    expect(chunksOf(rest).at(-1)).toMatchObject({ type: 'finish', finishReason: 'stop' })
    expect(rest.at(-1)).toEqual({ data: '[DONE]' })
  })

  test('is what the AI SDK reads', async () => {
    const jobId = await endedJob()
    const chunks = chunksOf(await readEvents(await follow(jobId)).rest()) as UIMessageChunk[]
    let message: UIMessage | undefined
    for await (message of readUIMessageStream({ stream: ReadableStream.from(chunks) }));
    expect(message).toMatchObject({
      id: jobId,
      role: 'assistant',
      parts: [{ type: 'step-start' }, { text: 'one two three' }],
    })
  })

  test('UX-2: has a comment without an id at least every 15 s', async () => {
    const events = readEvents(await follow(await api.spawn()))
    void events.next()
    await waitUntil(() => events.text().includes(': heartbeat\n\n'), { within: 15_000 })
    expect(events.text()).not.toContain('id:')
    await events.cancel()
  })

  test('goes on after Last-Event-ID or ?cursor=, the header first', async () => {
    const jobId = await endedJob()
    const after = async (headers: Record<string, string>, query = '') =>
      textOf(await readEvents(await follow(jobId, headers, query)).rest())
    expect(await after({ 'last-event-id': '4' })).toBe('two three')
    expect(await after({}, '?cursor=5')).toBe('three')
    expect(await after({ 'last-event-id': '4' }, '?cursor=5')).toBe('two three')
  })

  test.each(['', 'garbage', '-1', '1e3', '999999', '99999999999999999999', '0'])(
    'UX-3: begins at the start for the cursor "%s"',
    async (cursor) => {
      const events = await readEvents(await follow(await endedJob(), { 'last-event-id': cursor })).rest()
      expect(textOf(events)).toBe('one two three')
    },
  )

  test('UX-3: whose frames are gone shows the stored messages', async () => {
    const jobId = await endedJob()
    const { database } = api.stage.runtime
    await forget(jobId)
    await database.agentJob.update({ where: { id: jobId }, data: { finishedAt: new Date(Date.now() - 3_600_000) } })
    for (const cursor of ['', '7']) {
      const events = await readEvents(await follow(jobId, { 'last-event-id': cursor })).rest()
      expect(chunksOf(events)[0]).toEqual({ type: 'start', messageId: jobId })
      expect(textOf(events)).toBe('one two three')
      expect(chunksOf(events).at(-1)).toMatchObject({ type: 'finish' })
    }
  })

  test('UX-3: whose beginning is gone shows the stored steps, then live frames from the next whole step on', async () => {
    const jobId = await api.spawn()
    const token = await api.claim(jobId)
    // Redis was emptied in the middle of the first step: the stream begins with what came after.
    await api.play(jobId, [say('two '), ...REST])
    await api.storeStep(jobId, token, 'one two ')
    await api.play(jobId, [{ type: 'start-step' }, { type: 'text-start', id: 'u' }])
    await api.play(jobId, [
      { type: 'text-delta', id: 'u', delta: 'three' },
      { type: 'text-end', id: 'u' },
    ])
    const events = readEvents(await follow(jobId))
    const rest = events.rest()
    await waitUntil(() => events.text().includes('three'))
    await api.finish(jobId, token)
    const chunks = chunksOf(await rest)
    expect(chunks[0]).toEqual({ type: 'start', messageId: jobId })
    expect(await messageOf(chunks)).toMatchObject([
      { type: 'step-start' },
      { type: 'text', text: 'one two ' },
      { type: 'step-start' },
      { type: 'text', text: 'three' },
    ])
  })

  test('UX-3: whose middle of the only step is left shows the stored answer at the end', async () => {
    const jobId = await api.spawn()
    const token = await api.claim(jobId)
    await api.play(jobId, [say('two '), say('three'), ...REST])
    await api.storeStep(jobId, token, 'one two three')
    await api.finish(jobId, token)
    const events = await readEvents(await follow(jobId)).rest()
    expect(textOf(events)).toBe('one two three')
  })

  test('HEAD answers the headers alone', async () => {
    const response = await api.call(`/v1/agents/${await api.spawn()}/stream`, { as: 'alice', method: 'HEAD' })
    expect(response.headers.get('x-vercel-ai-ui-message-stream')).toBe('v1')
    expect(await response.text()).toBe('')
  })
})

describe('STUCK-13: a viewer gets a terminal frame', () => {
  test.each(['before the start', 'after the end'])('of a job aborted while queued, coming %s', async (when) => {
    const jobId = await api.spawn()
    const early = when === 'before the start' ? readEvents(await follow(jobId)) : undefined
    await api.json(`/v1/agents/${jobId}/abort`, { as: 'alice', body: {} })
    const events = await (early ?? readEvents(await follow(jobId))).rest()
    expect(chunksOf(events)).toEqual([
      { type: 'start', messageId: jobId },
      { type: 'abort', reason: 'aborted_by_user' },
      { type: 'finish', finishReason: 'other' },
    ])
  })

  test('of a job that failed, with its sentence', async () => {
    const jobId = await api.spawn()
    await api.finish(jobId, await api.claim(jobId), {
      state: 'failed',
      reason: 'model_auth',
      error: 'The key is wrong.',
    })
    const chunks = chunksOf(await readEvents(await follow(jobId)).rest())
    expect(chunks.slice(-2)).toEqual([
      { type: 'error', errorText: 'The key is wrong.' },
      { type: 'finish', finishReason: 'error' },
    ])
  })
})

describe('a viewer that leaves', () => {
  test('UX-6: stops no job', async () => {
    const jobId = await api.spawn()
    await api.claim(jobId)
    const events = readEvents(await follow(jobId))
    await waitUntil(() => api.openRequests.size() > 0)
    await events.cancel()
    await waitUntil(() => api.openRequests.size() === 0)
    expect(await api.stage.runtime.database.agentJob.findUnique({ where: { id: jobId } })).toMatchObject({
      state: 'running',
      abortRequestedAt: null,
    })
  })

  test('UX-4: leaves no subscription behind, 2,000 times', async () => {
    const jobId = await api.spawn()
    await api.claim(jobId)
    for (let round = 0; round < 20; round += 1) {
      const viewers = await Promise.all(Array.from({ length: 100 }, () => follow(jobId)))
      await Promise.all(viewers.map(async (viewer) => viewer.body?.cancel()))
    }
    await waitUntil(() => api.openRequests.size() === 0)
    await expect.poll(() => subscriptions(jobId)).toBe(0)
  })
})

test('ends without a terminal frame when the process stops, to be resumed from its cursor', async () => {
  const stopping = await openApi()
  try {
    const jobId = await stopping.spawn()
    await stopping.play(jobId, START(jobId))
    const events = readEvents(await stopping.call(`/v1/agents/${jobId}/stream`, { as: 'alice' }))
    await events.next()
    stopping.openRequests.end()
    expect(chunksOf(await events.rest()).map((chunk) => chunk.type)).toEqual(['start-step', 'text-start'])
    expect(events.text()).not.toContain('[DONE]')
  } finally {
    await stopping.close()
  }
})

async function onRedis<T>(work: (redis: Redis) => Promise<T>): Promise<T> {
  const redis = new Redis(process.env['REDIS_URL'] ?? '')
  try {
    return await work(redis)
  } finally {
    await redis.quit()
  }
}

/** As if the live stream had expired. */
async function forget(jobId: string): Promise<void> {
  await onRedis(async (redis) => {
    const keys = await redis.keys(`*:live:{${jobId}}*`)
    if (keys.length > 0) await redis.del(...keys)
  })
}

async function subscriptions(jobId: string): Promise<number> {
  return onRedis(async (redis) => (await redis.pubsub('CHANNELS', `*${jobId}*`)).length)
}
