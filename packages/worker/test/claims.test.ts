// A worker whose claim is gone, or that cannot know: it stops, and the job goes on elsewhere (here in the same process).
import { jsonSchema } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { handBack } from '@offshoot/shared/operations/hand-back'
import { endOf, eventsOf, readJob, runRoot, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { callsTool, type RawModel, type RawScript, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage
let ran = 0

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    // Silence of 3.5 s stops a run, and a worker that was not seen for 5 s is lost.
    environment: { WORKER_LOCK_MS: '4000', LOG_LEVEL: 'silent' },
    extensions: {
      tools: [
        {
          id: 'count',
          group: 'test',
          userSelect: true,
          tool: { inputSchema: jsonSchema<object>({ type: 'object' }), execute: async () => (ran += 1) },
        },
        {
          id: 'hang',
          group: 'test',
          userSelect: true,
          tool: { inputSchema: jsonSchema<object>({ type: 'object' }), execute: () => new Promise(() => undefined) },
        },
      ],
    },
  })
  await stage.putBot('bot', { toolNames: ['count', 'hang'] })
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const workerIds = async () =>
  (await stage.runtime.database.worker.findMany({ select: { id: true } })).map(({ id }) => id)

/** Waits until the worker has noticed that its row is gone and has made a new one. */
const untilThereAgain = () =>
  waitUntil(async () => {
    const ids = await workerIds()
    return ids.length === 1 && ids
  })

const seenAt = async () => (await stage.runtime.database.worker.findFirstOrThrow()).seenAt.getTime()

/** Waits for the worker's next heartbeat, and answers when it was seen to have come. */
async function nextHeartbeat(): Promise<number> {
  const before = await seenAt()
  await waitUntil(async () => (await seenAt()) !== before)
  return performance.now()
}

/** Says something and then waits until the other side goes away. */
const lingers: RawScript = async (reply) => {
  reply.text('I linger')
  await reply.closed
}

/** Takes a job from the worker that runs it, as the reconciler does with that of a lost one. */
async function takeAway(jobId: string): Promise<void> {
  const { rootJobId, workerId } = await readJob(stage, jobId)
  expect(await handBack(stage.runtime, { id: jobId, rootJobId }, { lostWorkerId: workerId ?? '' }, 'worker-lost')).toBe(
    true,
  )
}

test('COST-4: a run whose job was taken away stops calling the model, also when its own process gets the job again', async () => {
  raw.answer('take me away', callsTool('count', {}), lingers, says('found again'))
  const { id } = await spawnRoot(stage, 'bot', 'take me away')
  await untilLiveText(stage, id, 'I linger')
  const countBefore = ran
  await takeAway(id)
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'found again', attempt: 2, steps: 2 })
  await waitUntil(() => raw.requests('take me away')[1]?.closedByPeerAt, {
    within: stage.config.WORKER_HEARTBEAT_MS + 1_000,
  })
  expect(ran).toBe(countBefore)
  expect(raw.requests('take me away')).toHaveLength(3)
  // What the first attempt had said is late: kept, and nothing else.
  await waitUntil(async () => (await eventsOf(stage, id)).includes('late-result'))
  expect((await eventsOf(stage, id)).sort()).toEqual(['ended', 'late-result', 'spawned', 'worker-lost'])
})

test('COST-4: a run whose claim is gone stops at the next heartbeat, with nobody else there', async () => {
  raw.answer('nobody takes me', lingers, says('back again'))
  const { id } = await spawnRoot(stage, 'bot', 'nobody takes me')
  await untilLiveText(stage, id, 'I linger')
  const queue = stage.runtime.deliveries.lane('default')
  await queue.pause()
  await takeAway(id)
  await waitUntil(() => raw.requests('nobody takes me')[0]?.closedByPeerAt, {
    within: stage.config.WORKER_HEARTBEAT_MS + 1_000,
  })
  expect(await readJob(stage, id)).toMatchObject({ state: 'pending', claimToken: null, attempt: 1, deliverySeq: 2 })
  await queue.resume()
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'back again', attempt: 2 })
})

test('COST-3: a tool call that was cut with its attempt is reported as unknown, a finished one is not run again', async () => {
  raw.answer(
    'cut my tool',
    (reply) => {
      reply.call('count', {}, 'call_count')
      reply.call('hang', {}, 'call_hang')
      reply.finish()
    },
    says('I see'),
  )
  const countBefore = ran
  const { id } = await spawnRoot(stage, 'bot', 'cut my tool')
  await waitUntil(async () => {
    const calls = await stage.runtime.database.agentToolCall.findMany({ where: { jobId: id } })
    return calls.length === 2 && calls.some(({ finishedAt }) => finishedAt !== null)
  })
  await takeAway(id)
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'I see', attempt: 2 })
  expect(ran).toBe(countBefore + 1)
  expect(raw.requests('cut my tool')).toHaveLength(2)
  const read = JSON.stringify(raw.requests('cut my tool')[1]?.body)
  expect(read).toContain('The outcome of this call of hang is unknown')
  expect(read).not.toContain('this call of count')
})

test('COST-4: a worker that was declared lost stops its runs and starts again under a new id; its jobs go on', async () => {
  raw.answer('lose me', lingers, says('not lost'))
  const { id } = await spawnRoot(stage, 'bot', 'lose me')
  await untilLiveText(stage, id, 'I linger')
  const before = await workerIds()
  await stage.runtime.database.worker.deleteMany({})
  await waitUntil(() => raw.requests('lose me')[0]?.closedByPeerAt, {
    within: stage.config.WORKER_HEARTBEAT_MS + 1_000,
  })
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'not lost' })
  const again = await untilThereAgain()
  expect(again).not.toEqual(before)
  // What it takes from now on is taken by a worker that there is: else the reconciler would deliver it once more.
  raw.answer('take me', says('taken'))
  await waitUntil(async () => {
    const { id: next } = await runRoot(stage, 'bot', 'take me')
    const delivery = await stage.runtime.deliveries.lane('default').getJob(`${next}-1`)
    return delivery?.processedBy === again[0]
  })
})

test('COST-4: a worker that is closed by force stops calling the model, and hands its job back', async () => {
  const own = await openWorkerStage(raw.baseUrl, { environment: { WORKER_DRAIN_MS: '100' } })
  try {
    await own.putBot('bot')
    raw.answer('close by force', lingers)
    const { id } = await spawnRoot(own, 'bot', 'close by force')
    await untilLiveText(own, id, 'I linger')
    await own.worker.drain()
    // This process lives on: nothing but the end of the run closes the connection.
    await waitUntil(() => raw.requests('close by force')[0]?.closedByPeerAt, { within: 1_000 })
    expect(await readJob(own, id)).toMatchObject({ state: 'pending', claimToken: null, attempt: 1 })
    expect(raw.requests('close by force')).toHaveLength(1)
  } finally {
    await own.close()
  }
})

test('COST-4 STUCK-7: a run that was stopped for want of heartbeats goes on once Postgres answers, although the worker was not lost', async () => {
  raw.answer('hold your breath', callsTool('count', {}), lingers, says('breathing'))
  const { id } = await spawnRoot(stage, 'bot', 'hold your breath')
  await untilLiveText(stage, id, 'I linger')
  const before = await workerIds()
  const { WORKER_LOCK_MS: lockMs, WORKER_HEARTBEAT_MS: heartbeatMs } = stage.config
  // The last one comes between two others, as after a signal.
  const regularAt = await nextHeartbeat()
  await waitUntil(() => performance.now() - regularAt > heartbeatMs / 3)
  stage.runtime.signals.publish('workers', JSON.stringify([id]))
  const lastSeenAt = await nextHeartbeat()
  await stage.runtime.database.$transaction(
    async (tx) => {
      // Heartbeats wait, looks at workers do not.
      await tx.$executeRawUnsafe('lock table "offshoot"."Worker" in share row exclusive mode')
      const closedAt = await waitUntil(() => raw.requests('hold your breath')[1]?.closedByPeerAt)
      // A lock's length less one heartbeat; half of one for what stops and closes it.
      expect(closedAt - lastSeenAt).toBeLessThan(lockMs - heartbeatMs / 2)
    },
    { timeout: 10_000 },
  )
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'breathing', attempt: 2, crashes: 0 })
  expect(raw.requests('hold your breath')).toHaveLength(3)
  expect(await workerIds()).toEqual(before)
  expect(await eventsOf(stage, id)).toEqual(['spawned', 'handed-back', 'ended'])
})

test('STUCK-7: a job whose end cannot be written as it is fails as internal instead of staying open', async () => {
  const { database } = stage.runtime
  await database.$executeRawUnsafe(`
    create function "offshoot"."refuse"() returns trigger language plpgsql as $$ begin raise exception 'never'; end $$`)
  await database.$executeRawUnsafe(`
    create trigger "refuse" before insert on "offshoot"."AiMessage" for each row when (new."role" = 'assistant')
    execute function "offshoot"."refuse"()`)
  try {
    raw.answer('cannot end', says('the end'))
    expect(await runRoot(stage, 'bot', 'cannot end')).toMatchObject({ state: 'failed', reason: 'internal', steps: 1 })
  } finally {
    await database.$executeRawUnsafe(`drop trigger "refuse" on "offshoot"."AiMessage"`)
  }
  raw.answer('can end', says('the end'))
  const { id } = await runRoot(stage, 'bot', 'can end')
  expect(await readJob(stage, id)).toMatchObject({ state: 'completed' })
})
