// Redis loses everything while jobs are queued, running and waiting.
import { readJob, spawnOf, spawnRoot } from '@offshoot/testing/agents'
import { callsTool, says } from '@offshoot/testing/raw-model'
import { openServiceStage, type ServiceStage } from '@offshoot/testing/service-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'

const QUEUED = 100
/** As many as there are slots; half of them are children that a parent waits for. */
const RUNNING = 20
const WAITING = 10

let stage: ServiceStage

beforeAll(async () => {
  stage = await openServiceStage({ workers: 2, environment: { WORKER_CONCURRENCY: String(RUNNING / 2) } })
})
afterAll(() => stage.close())

const losses: [name: string, lose: () => Promise<void>][] = [
  ['FLUSHALL', async () => void (await stage.redis.command('FLUSHALL'))],
  [
    'a restart without an append-only file',
    async () => {
      await stage.redis.shutDown()
      await stage.redis.start()
    },
  ],
]

test.for(losses)(
  'LOSS-10, LOSS-9, LOSS-12: after %s each queued, running and waiting job completes, run once',
  async ([name, lose]) => {
    const { raw, runtime } = stage
    const { database } = runtime
    const liveJobs = () => database.agentJob.count({ where: { state: { in: ['pending', 'running'] } } })
    const before = await database.agentJob.count()
    const lost = Promise.withResolvers<void>()
    /** How often the model may be called for each message. */
    const expectedCalls = new Map<string, number>()
    const hold = (message: string) => {
      expectedCalls.set(message, 1)
      raw.answer(message, async (reply) => {
        reply.text('half')
        await lost.promise
        reply.text(' and whole')
        reply.finish()
      })
    }
    const spawn = (message: string) => spawnRoot(stage, 'bot', message)
    const numbered = (what: string, count: number) => Array.from({ length: count }, (_, at) => `${what} ${at}, ${name}`)

    const parents = numbered('parent', WAITING)
    for (const [at, child] of numbered('child', WAITING).entries()) {
      const parent = parents[at] ?? ''
      hold(child)
      expectedCalls.set(parent, 2)
      raw.answer(parent, callsTool('spawnAgent', spawnOf('bot', child)), says('woken'))
    }
    const runners = numbered('runner', RUNNING - WAITING)
    for (const message of runners) hold(message)
    const held = [...expectedCalls].filter(([, calls]) => calls === 1).map(([message]) => message)
    const jobs = await Promise.all([...parents, ...runners].map(spawn))
    await waitUntil(() => held.every((message) => raw.requests(message).length === 1), { what: 'all slots taken' })
    await waitUntil(async () => (await database.agentJob.count({ where: { waitingOn: 'children' } })) === WAITING)

    const queued = numbered('queued', QUEUED)
    for (const message of queued) {
      expectedCalls.set(message, 1)
      raw.answer(message, says('done'))
    }
    jobs.push(...(await Promise.all(queued.map(spawn))))
    await waitUntil(async () => (await runtime.deliveries.counts('default')).depth === QUEUED, { what: 'the queue' })

    await lose()
    lost.resolve()
    // And once more in the midst of it, when deliveries and wakes come and go.
    await waitUntil(async () => (await liveJobs()) < jobs.length - QUEUED / 4, { within: 60_000, what: 'some ends' })
    await lose()

    await waitUntil(async () => (await liveJobs()) === 0, { within: 60_000, what: 'the end of all jobs' })
    expect(await database.agentJob.count({ where: { state: 'completed' } })).toBe(before + jobs.length + WAITING)
    const calls = new Map([...expectedCalls.keys()].map((message) => [message, raw.requests(message).length]))
    expect(calls).toEqual(expectedCalls)
    for (const { id } of jobs.slice(WAITING, WAITING + runners.length))
      expect(await readJob(stage, id)).toMatchObject({ attempt: 1, result: 'half and whole' })
    expect(await stage.restarts()).toEqual([])
  },
)
