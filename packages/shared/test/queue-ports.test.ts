// What carries deliveries, signals and live frames: Redis, or the memory of one process. Both pass the same tests.
import { DelayedError, type Job, UnrecoverableError, Worker } from 'bullmq'
import type { UIMessageChunk } from 'ai'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { LiveBatch } from '../src/contracts/live-frame.ts'
import { newId } from '../src/ids.ts'
import { type Delivery, type DeliveryQueues, openDeliveryQueues, queueName } from '../src/queue/delivery-queue.ts'
import { openInlineQueue } from '../src/queue/inline-queue.ts'
import { type LiveStreams, openLiveStreams } from '../src/queue/live-streams.ts'
import { openMemoryLiveStreams } from '../src/queue/memory-live-streams.ts'
import { openMemorySignals } from '../src/queue/memory-signals.ts'
import { openSignals, type Signals } from '../src/queue/signals.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ environment: { LOG_LEVEL: 'silent' } })
})
afterAll(() => stage.close())

interface Closable {
  close(): Promise<void>
}
let open: Closable[] = []
function tracked<T extends Closable>(port: T): T {
  open.push(port)
  return port
}
afterEach(async () => {
  for (const port of open.toReversed()) await port.close()
  open = []
})

describe.each([
  ['Redis', () => openSignals(stage.config, stage.runtime.logger)],
  ['memory', () => openMemorySignals(stage.runtime.logger)],
])('signals through %s', (_, openPort: () => Signals) => {
  test('a message reaches every listener of its channel, in order, and nobody else', async () => {
    const signals = tracked(openPort())
    await waitUntil(() => signals.isReachable())
    const heard: Record<string, string[]> = { first: [], second: [], other: [] }
    await signals.subscribe('job:a', (message) => heard['first']?.push(message))
    await signals.subscribe('job:a', (message) => heard['second']?.push(message))
    await signals.subscribe('job:b', (message) => heard['other']?.push(message))
    for (const message of ['1', '2', '3']) signals.publish('job:a', message)
    signals.publish('job:b', 'end')
    await waitUntil(() => heard['other']?.length === 1)
    await waitUntil(() => heard['second']?.length === 3)
    expect(heard).toEqual({ first: ['1', '2', '3'], second: ['1', '2', '3'], other: ['end'] })
  })

  test('a listener that has gone hears nothing more, the others do', async () => {
    const signals = tracked(openPort())
    await waitUntil(() => signals.isReachable())
    const gone: string[] = []
    const left: string[] = []
    const unsubscribe = await signals.subscribe('workers', (message) => gone.push(message))
    await signals.subscribe('workers', (message) => left.push(message))
    unsubscribe()
    unsubscribe()
    signals.publish('workers', 'x')
    await waitUntil(() => left.length === 1)
    expect(gone).toEqual([])
  })

  test('a listener hears after the publisher has gone on, and one that throws keeps no other from it', async () => {
    const signals = tracked(openPort())
    await waitUntil(() => signals.isReachable())
    const heard: string[] = []
    await signals.subscribe('live:a', () => {
      throw new Error('a listener of this test')
    })
    await signals.subscribe('live:a', (message) => heard.push(message))
    signals.publish('live:a', 'x')
    expect(heard).toEqual([])
    await waitUntil(() => heard.length === 1)
  })

  test('the pulse says that writes are taken', async () => {
    const signals = tracked(openPort())
    await waitUntil(() => signals.pulse.isOk())
    expect(signals.pulse.state()).toBe('ok')
  })
})

const delta = (text: string): UIMessageChunk => ({ type: 'text-delta', id: 't', delta: text })
/** Chunks that have so many bytes as JSON. */
const large = (bytes: number) => [delta('x'.repeat(bytes - JSON.stringify([delta('')]).length))]
const textsOf = (batches: LiveBatch[]) =>
  batches.map(({ firstSeq, chunks }) => [
    firstSeq,
    ...chunks.map((chunk) => (chunk.type === 'text-delta' ? chunk.delta : chunk.type)),
  ])

describe.each([
  ['Redis', () => openLiveStreams(stage.config, stage.runtime.logger)],
  ['memory', () => openMemoryLiveStreams()],
])('live streams in %s', (_, openPort: () => LiveStreams) => {
  const first = { generation: 1, attempt: 1 }

  test('frames are numbered through the job; a cursor gets the batch that holds the next one, and what follows', async () => {
    const live = tracked(openPort())
    const id = newId()
    expect(await live.append(id, { ...first, number: 1, chunks: [delta('a'), delta('b')] })).toBe(2)
    expect(await live.append(id, { ...first, number: 2, chunks: [delta('c')] })).toBe(3)
    expect(await live.append(id, { ...first, number: 3, chunks: [{ type: 'finish' }], end: true })).toBe(4)
    expect(await live.read(id, 0)).toEqual([
      { ...first, firstSeq: 1, chunks: [delta('a'), delta('b')] },
      { ...first, firstSeq: 3, chunks: [delta('c')] },
      { ...first, firstSeq: 4, chunks: [{ type: 'finish' }], end: true },
    ])
    const expected = [
      [1, [1, 3, 4]],
      [2, [3, 4]],
      [3, [4]],
      [4, []],
      [99, []],
    ] as const
    for (const [cursor, seqs] of expected)
      expect((await live.read(id, cursor)).map(({ firstSeq }) => firstSeq)).toEqual(seqs)
    expect((await live.read(id, 2, 1)).map(({ firstSeq }) => firstSeq)).toEqual([3])
    expect((await live.readTail(id)).map(({ firstSeq }) => firstSeq)).toEqual([1, 3, 4])
    expect(await live.read(newId(), 0)).toEqual([])
    expect(await live.readTail(newId())).toEqual([])
  })

  test('a batch that is sent again is appended once', async () => {
    const live = tracked(openPort())
    const id = newId()
    const batch = { ...first, number: 1, chunks: [delta('a')] }
    expect(await live.append(id, batch)).toBe(1)
    expect(await live.append(id, batch)).toBe(1)
    expect(await live.append(id, { ...batch, number: 2 })).toBe(2)
    expect(textsOf(await live.read(id, 0))).toEqual([
      [1, 'a'],
      [2, 'a'],
    ])
  })

  test('STATE-7: a newer attempt or generation shuts the older ones out, also by an announcement without frames', async () => {
    const live = tracked(openPort())
    const id = newId()
    await live.append(id, { ...first, number: 1, chunks: [delta('a')] })
    expect(await live.append(id, { generation: 1, attempt: 2, number: 0, chunks: [] })).toBe(1)
    expect(await live.append(id, { ...first, number: 2, chunks: [delta('old')] })).toBe(false)
    expect(await live.append(id, { generation: 1, attempt: 2, number: 1, chunks: [delta('b')] })).toBe(2)
    expect(await live.append(id, { generation: 2, attempt: 1, number: 1, chunks: [delta('c')] })).toBe(3)
    expect(await live.append(id, { generation: 1, attempt: 9, number: 1, chunks: [delta('old')] })).toBe(false)
    expect(textsOf(await live.read(id, 0))).toEqual([
      [1, 'a'],
      [2, 'b'],
      [3, 'c'],
    ])
  })

  test('numbers go on from what the writer knows of, when the stream is gone', async () => {
    const live = tracked(openPort())
    const id = newId()
    expect(await live.append(id, { ...first, number: 7, chunks: [delta('a')], afterSeq: 40 })).toBe(41)
    expect(textsOf(await live.read(id, 0))).toEqual([[41, 'a']])
  })

  test('an attempt that makes a step again takes back what an older one had said of it, and no finished step', async () => {
    const live = tracked(openPort())
    const id = newId()
    await live.append(id, { ...first, number: 1, chunks: [delta('one'), { type: 'finish-step' }], endsStep: true })
    await live.append(id, { ...first, number: 2, chunks: [delta('two, cut')] })
    await live.append(id, { generation: 1, attempt: 2, number: 1, chunks: [delta('two')], restartsStep: true })
    expect(textsOf(await live.read(id, 0))).toEqual([
      [1, 'one', 'finish-step'],
      [4, 'two'],
    ])
  })

  test('what is read is what was appended, whatever becomes of the values later', async () => {
    const live = tracked(openPort())
    const id = newId()
    const output = { found: ['a'] }
    await live.append(id, {
      ...first,
      number: 1,
      chunks: [{ type: 'tool-output-available', toolCallId: 'c', output }],
    })
    output.found.push('b')
    const [batch] = await live.read(id, 0)
    expect(batch?.chunks).toEqual([{ type: 'tool-output-available', toolCallId: 'c', output: { found: ['a'] } }])
  })

  test('a batch tells which step begins in it', async () => {
    const live = tracked(openPort())
    const id = newId()
    await live.append(id, { ...first, number: 1, chunks: [{ type: 'start-step' }], startsStep: 0 })
    await live.append(id, { ...first, number: 2, chunks: [delta('a')] })
    expect((await live.read(id, 0)).map((batch) => batch.startsStep)).toEqual([0, undefined])
    expect((await live.readTail(id)).map((batch) => batch.startsStep)).toEqual([0, undefined])
  })

  test('UX-9: the newest megabyte is kept while a job runs, 16,000 bytes once it has ended, and always the newest batch', async () => {
    const live = tracked(openPort())
    const id = newId()
    const seqs = async () => (await live.read(id, 0)).map(({ firstSeq }) => firstSeq)
    for (let number = 1; number <= 4; number += 1)
      await live.append(id, { ...first, number, chunks: large(250_000), endsStep: number === 3 })
    expect(await seqs()).toEqual([1, 2, 3, 4])
    await live.append(id, { generation: 1, attempt: 2, number: 1, chunks: large(250_000), restartsStep: true })
    expect(await seqs()).toEqual([1, 2, 3, 5])
    await live.append(id, { generation: 1, attempt: 2, number: 2, chunks: large(1_000) })
    expect(await seqs()).toEqual([2, 3, 5, 6])
    await live.append(id, { generation: 1, attempt: 2, number: 3, chunks: large(1_200_000) })
    expect(await seqs()).toEqual([7])
    await live.append(id, { generation: 1, attempt: 2, number: 4, chunks: large(10_000) })
    await live.append(id, { generation: 1, attempt: 2, number: 5, chunks: large(6_000), end: true })
    expect(await seqs()).toEqual([8, 9])
  })

  test('the newest 500 batches are the tail', async () => {
    const live = tracked(openPort())
    const id = newId()
    for (let number = 1; number <= 510; number += 1) await live.append(id, { ...first, number, chunks: [delta('x')] })
    const tail = await live.readTail(id)
    expect([tail.length, tail[0]?.firstSeq, tail.at(-1)?.firstSeq]).toEqual([500, 11, 510])
    expect(await live.read(id, 0)).toHaveLength(500)
  })
})

interface Taker {
  queue: DeliveryQueues
  /** Takes deliveries, so many at a time; the function ends them. What it answers is brought again after so many milliseconds. */
  take(concurrency: number, run: (delivery: Pick<Delivery, 'data'>) => Promise<void | number>): void
}

let takers = 0
function bullTaker(): Taker {
  takers += 1
  const config = { ...stage.config, QUEUE_PREFIX: `${stage.config.QUEUE_PREFIX}${takers}` }
  const queue = tracked(openDeliveryQueues(config, stage.runtime.logger))
  return {
    queue,
    take(concurrency, run) {
      const process = async (job: Job<Delivery['data']>, token?: string) => {
        const againAfterMs = await run({ data: job.data })
        if (typeof againAfterMs === 'number') {
          await job.moveToDelayed(Date.now() + againAfterMs, token)
          throw new DelayedError()
        }
        throw new UnrecoverableError('a job that failed is an ended delivery, too')
      }
      const connection = { url: stage.config.REDIS_URL ?? '' }
      tracked(new Worker(queueName('default'), process, { connection, prefix: config.QUEUE_PREFIX, concurrency }))
    },
  }
}

function memoryTaker(): Taker {
  const queue = tracked(openInlineQueue(stage.runtime.logger))
  return {
    queue,
    take(concurrency, run) {
      queue.start({
        id: () => 'w',
        concurrency,
        async run(next) {
          const againAfterMs = await run(next)
          return typeof againAfterMs === 'number' ? { againAfterMs } : {}
        },
      })
    },
  }
}

function delivery(agentJobId: string, priority = 10): Delivery {
  const data = { agentJobId, deliverySeq: 1, owner: 'alice', parent: null, depth: 1 }
  return { lane: 'default', name: 'forge/writer', priority, data }
}

const isUnderway = ({ queue }: Taker, id: string) => queue.isUnderway('default', id, 1)

describe.each([
  ['BullMQ', bullTaker],
  ['memory', memoryTaker],
])('deliveries in %s', (_, openTaker: () => Taker) => {
  test('a delivery waits, is taken with its data once however often it was added, and is over', async () => {
    const taker = openTaker()
    const { queue } = taker
    expect(await isUnderway(taker, 'a')).toBe(false)
    await queue.add(delivery('a'))
    await queue.add(delivery('a'))
    expect(await isUnderway(taker, 'a')).toBe(true)
    expect(await queue.counts('default')).toEqual({ paused: false, depth: 1 })
    expect(await queue.counts('other')).toMatchObject({ depth: 0 })

    const taken: unknown[] = []
    const end = Promise.withResolvers<void>()
    taker.take(5, async ({ data }) => {
      taken.push(data)
      await queue.add(delivery('a'))
      await end.promise
    })
    await waitUntil(() => taken.length === 1)
    expect(await isUnderway(taker, 'a')).toBe(true)
    expect(await queue.counts('default')).toMatchObject({ depth: 0 })
    end.resolve()
    await waitUntil(async () => !(await isUnderway(taker, 'a')))
    expect(taken).toEqual([delivery('a').data])
  })

  test('a delivery that waits can be removed, one that is taken cannot', async () => {
    const taker = openTaker()
    const { queue } = taker
    for (const id of ['taken', 'waiting', 'other']) await queue.add(delivery(id))
    await queue.remove('default', 'waiting', 1)
    await queue.remove('default', 'nothing', 1)
    expect(await isUnderway(taker, 'waiting')).toBe(false)
    const taken: string[] = []
    const end = Promise.withResolvers<void>()
    taker.take(1, async ({ data }) => {
      taken.push(data.agentJobId)
      await end.promise
    })
    await waitUntil(() => taken.length === 1)
    await queue.remove('default', 'taken', 1).catch(() => undefined)
    expect(await isUnderway(taker, 'taken')).toBe(true)
    end.resolve()
    await waitUntil(() => taken.length === 2)
    expect(taken).toEqual(['taken', 'other'])
  })

  test('a delivery that is not over comes again after its time, holds no slot meanwhile, and can be removed', async () => {
    const taker = openTaker()
    const { queue } = taker
    await queue.add(delivery('a'))
    const taken: string[] = []
    let againAfterMs = 50
    taker.take(1, async ({ data: { agentJobId } }) => {
      taken.push(agentJobId)
      return taken.length === 1 || taken.length === 4 ? againAfterMs : undefined
    })
    await waitUntil(async () => taken.length === 1 && (await queue.counts('default')).depth === 1)
    expect(await isUnderway(taker, 'a')).toBe(true)
    await queue.add(delivery('a'))
    await queue.add(delivery('b'))
    await waitUntil(() => taken.length === 3)
    expect(taken.toSorted()).toEqual(['a', 'a', 'b'])
    await waitUntil(async () => !(await isUnderway(taker, 'a')))

    againAfterMs = 60_000
    await queue.add(delivery('c'))
    await waitUntil(async () => taken.length === 4 && (await queue.counts('default')).depth === 1)
    await queue.remove('default', 'c', 1)
    expect(await isUnderway(taker, 'c')).toBe(false)
  })

  test('it is known how many are taken before one that waits', async () => {
    const { queue } = openTaker()
    for (const [id, priority] of Object.entries({ b: 20, c: 20, a: 1 })) await queue.add(delivery(id, priority))
    expect(await Promise.all(['a', 'b', 'c', 'd'].map((id) => queue.countBefore('default', id, 1)))).toEqual([
      0,
      1,
      2,
      undefined,
    ])
    expect(await queue.isPaused('default')).toBe(false)
  })

  test('STUCK-17: the most urgent is taken first, those of one priority in their order, and no more at a time than allowed', async () => {
    const taker = openTaker()
    const { queue } = taker
    for (const [id, priority] of Object.entries({ c: 20, d: 20, b: 10, a: 1, e: 20 }))
      await queue.add(delivery(id, priority))
    const taken: string[] = []
    let atOnce = 0
    let most = 0
    taker.take(2, async ({ data }) => {
      taken.push(data.agentJobId)
      atOnce += 1
      most = Math.max(most, atOnce)
      await new Promise((resolve) => setTimeout(resolve, 20))
      atOnce -= 1
    })
    await waitUntil(() => taken.length === 5)
    expect(taken).toEqual(['a', 'b', 'c', 'd', 'e'])
    expect(most).toBe(2)
    await queue.add(delivery('later'))
    await waitUntil(() => taken.length === 6)
  })
})

test('the memory queue takes nothing after its stop, which waits for what is under way', async () => {
  const queue = openInlineQueue(stage.runtime.logger)
  const end = Promise.withResolvers<void>()
  const taken: string[] = []
  const run = async ({ data }: Delivery) => {
    taken.push(data.agentJobId)
    await end.promise
    return { againAfterMs: 1 }
  }
  expect(queue.workerId()).toBeUndefined()
  queue.start({ id: () => 'w', concurrency: 1, run })
  expect(queue.workerId()).toBe('w')
  await queue.add(delivery('first'))
  await queue.add(delivery('second'))
  let stopped = false
  const stopping = queue.stop().then(() => (stopped = true))
  expect(queue.workerId()).toBeUndefined()
  await queue.add(delivery('third'))
  expect(stopped).toBe(false)
  end.resolve()
  await stopping
  expect(taken).toEqual(['first'])
  expect(await queue.counts('default')).toEqual({ paused: false, depth: 0 })
})
