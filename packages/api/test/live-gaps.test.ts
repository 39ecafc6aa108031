// Viewers of a stream that has lost frames: too many for it to keep, or trimmed at the job's end. Whenever a viewer comes
// and however slowly it reads, it has every text whole and once in the end.
import { createHash } from 'node:crypto'
import { storeModelOutput, storeWholeStep } from '@offshoot/shared/db/journal'
import type { NewBatch } from '@offshoot/shared/queue/live-streams'
import { waitUntil } from '@offshoot/testing/wait-until'
import { readUIMessageStream, type UIMessage, type UIMessageChunk } from 'ai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ApiUnderTest, openApi } from './api-under-test.ts'
import { chunksOf, type EventReader, readEvents, textOf } from './event-stream.ts'

const PIECE = 50_000

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
})
afterAll(() => api.close())

/** A text of which no two pieces are the same. */
function longText(name: string, pieces: number): string[] {
  return Array.from({ length: pieces }, (_, at) => `${name}-${at} `.padEnd(PIECE, `${name[0] ?? ''}.`))
}

/** A running job of alice, written as a worker writes it. */
async function runningJob() {
  const jobId = await api.spawn()
  const token = await api.claim(jobId)
  const { liveStreams, signals, database } = api.stage.runtime
  let number = 0
  async function write(chunks: UIMessageChunk[], more: Partial<NewBatch> = {}): Promise<void> {
    number += 1
    await liveStreams.append(jobId, { generation: 1, attempt: 1, number, chunks, ...more })
    signals.publish(`live:${jobId}`, 'frames')
  }
  await write([{ type: 'start', messageId: jobId }])
  const id = 'text'
  return {
    jobId,
    token,
    async begin(index: number) {
      await write([{ type: 'start-step' }, { type: 'text-start', id }], { startsStep: index })
    },
    async say(pieces: string[]) {
      for (const delta of pieces) await write([{ type: 'text-delta', id, delta }])
    },
    /** Stores a step and then ends it, as a worker does. */
    async end(index: number, pieces: string[]) {
      const usage = { inputTokens: 1, outputTokens: 1, reasoningTokens: 0, totalTokens: 2 }
      const output = { index, generation: 1, parts: [], usage, finishReason: 'stop', elapsedMs: 1, inboxSeqs: [] }
      await storeModelOutput(database, { jobId, token }, output)
      const content = [{ type: 'text' as const, text: pieces.join('') }]
      await storeWholeStep(database, { jobId, token }, index, [{ role: 'assistant', content }])
      await write([{ type: 'text-end', id }, { type: 'finish-step' }], { endsStep: true })
    },
    async step(index: number, pieces: string[]) {
      await this.begin(index)
      await this.say(pieces)
      await this.end(index, pieces)
    },
  }
}

const follow = async (jobId: string, cursor?: string): Promise<EventReader> =>
  readEvents(
    await api.call(`/v1/agents/${jobId}/stream${cursor === undefined ? '' : `?cursor=${cursor}`}`, { as: 'alice' }),
  )

const fail = (error: unknown) => expect.unreachable(String(error))

/** The texts that an unchanged chat shows in the end, one for each step. */
async function textsOf(events: EventReader): Promise<string[]> {
  const chunks = chunksOf(await events.rest()) as UIMessageChunk[]
  let message: UIMessage | undefined
  for await (message of readUIMessageStream({ stream: ReadableStream.from(chunks), onError: fail }));
  expect(chunks.filter(({ type }) => type === 'finish')).toHaveLength(1)
  return message?.parts.flatMap((part) => (part.type === 'text' ? [part.text] : [])) ?? []
}

/** Stands for texts of megabytes, so that a difference is not printed whole. */
const digest = (texts: string[]) =>
  texts.map((text) => `${text.length} characters, ${createHash('sha256').update(text).digest('hex')}`)
const digestOf = (...steps: string[][]) => digest(steps.map((pieces) => pieces.join('')))

describe('LOSS-20: every text is whole and once for a viewer', () => {
  test('that follows from the start', async () => {
    const job = await runningJob()
    const viewer = await follow(job.jobId)
    const texts = textsOf(viewer)
    const [a, b] = [longText('a', 40), longText('b', 40)]
    await job.step(0, a)
    await job.step(1, b)
    await api.finish(job.jobId, job.token)
    expect(digest(await texts)).toEqual(digestOf(a, b))
  })

  test('that reads nothing while the stream runs away, and then all', async () => {
    const job = await runningJob()
    const viewer = await follow(job.jobId)
    await viewer.next()
    const [a, b, c] = [longText('a', 60), longText('b', 400), longText('c', 60)]
    await job.step(0, a)
    await job.step(1, b)
    await job.step(2, c)
    await api.finish(job.jobId, job.token)
    const first: UIMessageChunk = { type: 'start', messageId: job.jobId }
    const chunks = chunksOf(await viewer.rest()) as UIMessageChunk[]
    expect(digest(await textsOf(readerOf([first, ...chunks])))).toEqual(digestOf(a, b, c))
  })

  test('that comes in the middle of a step whose beginning is gone', async () => {
    const job = await runningJob()
    const [a, b, c] = [longText('a', 3), longText('b', 30), longText('c', 3)]
    await job.step(0, a)
    await job.begin(1)
    await job.say(b)
    const viewer = await follow(job.jobId)
    const texts = textsOf(viewer)
    await waitUntil(() => viewer.text().includes('"start"'))
    await job.end(1, b)
    await job.step(2, c)
    await api.finish(job.jobId, job.token)
    expect(digest(await texts)).toEqual(digestOf(a, b, c))
  })

  test('that comes when more steps are stored than the stream has lost', async () => {
    const job = await runningJob()
    const steps = [longText('a', 10), longText('b', 10), longText('c', 5)]
    for (const [index, pieces] of steps.entries()) await job.step(index, pieces)
    const viewer = await follow(job.jobId)
    const texts = textsOf(viewer)
    await waitUntil(() => viewer.text().includes('c-4'))
    await api.finish(job.jobId, job.token)
    expect(digest(await texts)).toEqual(digestOf(...steps))
  })

  test('that comes after the end', async () => {
    const job = await runningJob()
    const [a, b] = [longText('a', 30), longText('b', 30)]
    await job.step(0, a)
    await job.step(1, b)
    await api.finish(job.jobId, job.token)
    await waitUntil(async () => (await api.stage.runtime.liveStreams.readTail(job.jobId)).at(-1)?.end)
    expect(digest(await textsOf(await follow(job.jobId)))).toEqual(digestOf(a, b))
  })

  test('of a job that was aborted in a step, which is stored with the message alone', async () => {
    const job = await runningJob()
    const [a, b] = [longText('a', 2), longText('b', 30)]
    await job.step(0, a)
    await job.begin(1)
    const early = await follow(job.jobId)
    await early.next()
    await job.say(b)
    const parts = [
      { type: 'step-start' as const },
      { type: 'text' as const, text: a.join('') },
      { type: 'step-start' as const },
      { type: 'text' as const, text: b.join('') },
    ]
    await api.finish(job.jobId, job.token, { state: 'aborted', reason: 'aborted_by_user', error: 'Aborted.' }, parts)
    await waitUntil(async () => (await api.stage.runtime.liveStreams.readTail(job.jobId)).at(-1)?.end)
    const late = await textsOf(await follow(job.jobId))
    expect(digest(late)).toEqual(digestOf(a, b))
    const first: UIMessageChunk = { type: 'start', messageId: job.jobId }
    expect(digest(await textsOf(readerOf([first, ...(chunksOf(await early.rest()) as UIMessageChunk[])])))).toEqual(
      digestOf(a, b),
    )
  })
})

describe('UX-3: a cursor', () => {
  test('that frames are missing after begins anew; one that is still in the stream goes on', async () => {
    const job = await runningJob()
    const a = longText('a', 40)
    await job.begin(0)
    await job.say(a)
    await job.end(0, a)
    await api.finish(job.jobId, job.token)
    await waitUntil(async () => (await api.stage.runtime.liveStreams.readTail(job.jobId)).at(-1)?.end)
    // Frames: start, start-step, text-start, 40 pieces, text-end, finish-step, finish.
    expect(digest(await textsOf(await follow(job.jobId, '10')))).toEqual(digestOf(a))
    expect(textOf(await (await follow(job.jobId, '43')).rest())).toBe('')
    const rest = chunksOf(await (await follow(job.jobId, '44')).rest())
    expect(rest.map(({ type }) => type)).toEqual(['finish-step', 'finish'])
  })
})

/** A reader of chunks that have been read already. */
function readerOf(chunks: UIMessageChunk[]): EventReader {
  return {
    text: () => '',
    next: async () => undefined,
    rest: async () => chunks.map((chunk) => ({ data: JSON.stringify(chunk) })),
    cancel: async () => undefined,
  }
}
