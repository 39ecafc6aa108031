// The dashboard's actions, through the router that serves it, on jobs of a real worker.
import { appRoutes } from '@bull-board/api/dist/routes.js'
import { eventsOf, readJob } from '@offshoot/testing/agents'
import { startWorkerProcess, type TestProcess } from '@offshoot/testing/processes'
import { callsTool, type RawModel, type RawScript, says, startRawModel, ticking } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ApiUnderTest, openApi } from './api-under-test.ts'

const LOGIN = { BULL_BOARD_USER: 'ops', BULL_BOARD_PASSWORD: 'secret', BULL_BOARD_WRITE: 'true' }
const ops = { authorization: `Basic ${Buffer.from('ops:secret').toString('base64')}` }

let raw: RawModel
let api: ApiUnderTest
let worker: TestProcess
beforeAll(async () => {
  raw = await startRawModel()
  // The worker serves the lane "default" only: what is in "slow" stays pending.
  api = await openApi({ ...LOGIN, WORKER_LANES: 'default,slow', OPENAI_BASE_URL: raw.baseUrl })
  await api.stage.putBot('sleeper', { lane: 'slow' })
  worker = await startWorkerProcess({ ...api.stage.environment, WORKER_LANES: 'default' })
})
afterAll(async () => {
  await worker.stop()
  await api.close()
  await raw.stop()
})

interface ActOptions {
  method?: string
  body?: unknown
  headers?: Record<string, string>
}

async function act(path: string, { method = 'PUT', body, headers = ops }: ActOptions = {}) {
  const response = await api.call(`/admin/queues/api/queues${path}`, {
    method,
    headers,
    ...(body === undefined ? {} : { body }),
  })
  const text = await response.text()
  const answer: Record<string, unknown> = text === '' ? {} : JSON.parse(text)
  return { status: response.status, answer }
}

type State = 'pending' | 'running' | 'waiting' | 'completed' | 'failed' | 'aborted'
const STATES: State[] = ['pending', 'running', 'waiting', 'completed', 'failed', 'aborted']

interface Staged {
  jobId: string
  queue: string
  /** The delivery that the board shows last. */
  delivery: string
  /** Model calls so far for this job. */
  calls(): number
}

let staged = 0

/** A job that the worker has brought into this state. A retry of it would complete. */
async function stageJob(state: State): Promise<Staged> {
  staged += 1
  const message = `${state} ${staged}`
  const again = says('done after all')
  const sleeper = { bot: { botGroup: 'forge', botHandle: 'sleeper' }, message: 'sleep' }
  const scripts: Record<State, RawScript[]> = {
    pending: [again],
    running: [ticking, again],
    waiting: [callsTool('spawnAgent', sleeper), again],
    completed: [says('done'), again],
    failed: [(reply) => reply.status(401, { message: 'no' }), again],
    aborted: [ticking, again],
  }
  raw.answer(message, ...scripts[state])
  const jobId = await api.spawn('alice', { message, ...(state === 'pending' ? { lane: 'slow' } : {}) })
  if (state === 'running' || state === 'aborted') await waitUntil(() => raw.requests(message).length === 1)
  if (state === 'aborted') await api.call(`/v1/agents/${jobId}/abort`, { as: 'alice', body: {} })
  await waitUntil(async () => (await stateOf(jobId)) === state, { what: `${message} of ${jobId}` })
  const queue = state === 'pending' ? 'agents-slow' : 'agents-default'
  const delivery = `${jobId}-1`
  const shown = { pending: 'prioritized', running: 'active', failed: 'failed' }[state as string] ?? 'completed'
  await waitUntil(async () => (await deliveryStateOf(queue, delivery)) === shown, { what: `a ${shown} delivery` })
  return { jobId, queue, delivery, calls: () => raw.requests(message).length }
}

async function stateOf(jobId: string): Promise<State> {
  const { state, waitingOn } = await readJob(api.stage, jobId)
  return state === 'running' && waitingOn !== null ? 'waiting' : state
}

async function deliveryStateOf(queue: string, delivery: string): Promise<string> {
  return api.stage.runtime.deliveries.lane(queue.replace('agents-', '')).getJobState(delivery)
}

/** What the row says of where a job stands. */
async function standOf(jobId: string) {
  const { state, reason, waitingOn, generation, attempt, deliverySeq, result, error } = await readJob(api.stage, jobId)
  return { state, reason, waitingOn, generation, attempt, deliverySeq, result, error }
}

/** Everything that was in the queue before has been taken when this returns. */
async function untilWorkerIsThrough(): Promise<void> {
  raw.answer('canary', says('tweet'))
  const canary = await api.spawn('alice', { message: 'canary' })
  await waitUntil(async () => (await stateOf(canary)) === 'completed')
}

/** Ends what a test leaves behind, so that no later test meets it. */
async function endAll(): Promise<void> {
  const live = await api.stage.runtime.database.agentJob.findMany({ where: { state: { in: ['pending', 'running'] } } })
  for (const { id } of live) await api.call(`/v1/agents/${id}/abort`, { as: 'admin', body: {} })
  await waitUntil(async () => {
    const where = { state: { in: ['pending' as const, 'running' as const] } }
    return (await api.stage.runtime.database.agentJob.count({ where })) === 0
  })
  for (const lane of ['default', 'slow']) {
    const queue = api.stage.runtime.deliveries.lane(lane)
    for (const status of ['completed', 'failed'] as const) await queue.clean(0, 10_000, status)
  }
}

/** Every route of the installed board that may change something, and what this board makes of it. */
const WRITES = {
  'put /api/queues/pause': 'ours',
  'put /api/queues/resume': 'ours',
  'put /api/queues/:queueName/pause': 'ours',
  'put /api/queues/:queueName/resume': 'ours',
  'put /api/queues/:queueName/retry/:queueStatus': 'ours',
  'put /api/queues/:queueName/clean/:queueStatus': 'ours',
  'put /api/queues/:queueName/:jobId/retry': 'ours',
  'put /api/queues/:queueName/:jobId/clean': 'ours',
  'post /api/queues/:queueName/add': 'off',
  'put /api/queues/:queueName/promote': 'off',
  'put /api/queues/:queueName/concurrency': 'off',
  'put /api/queues/:queueName/rate-limit': 'off',
  'put /api/queues/:queueName/rate-limit/release': 'off',
  'put /api/queues/:queueName/empty': 'off',
  'put /api/queues/:queueName/obliterate': 'off',
  'put /api/queues/:queueName/job-schedulers/:schedulerId/remove': 'off',
  'patch /api/queues/:queueName/job-schedulers/:schedulerId': 'off',
  'put /api/queues/:queueName/job-schedulers/:schedulerId/run': 'off',
  'put /api/queues/:queueName/:jobId/promote': 'off',
  'patch /api/queues/:queueName/:jobId/update-data': 'off',
  'patch /api/queues/:queueName/:jobId/delay': 'off',
  'patch /api/queues/:queueName/:jobId/priority': 'off',
  'put /api/queues/:queueName/:jobId/remove-unprocessed-children': 'off',
} as const

/** A body that the board itself would take. */
const BODIES: Record<string, unknown> = {
  add: { name: 'x', data: {}, options: {} },
  concurrency: { concurrency: 1 },
  'rate-limit': { max: 1, duration: 60_000 },
  obliterate: { force: true },
  'update-data': { jobData: { agentJobId: 'another' } },
  delay: { runAt: Date.now() + 60_000 },
  priority: { priority: 5 },
}

const OFF = Object.entries(WRITES)
  .filter(([, what]) => what === 'off')
  .map(([route]) => route.split(' /api/queues') as [string, string])

test('STATE-17: every route of the installed board that writes is known here', () => {
  const routes = appRoutes.api.flatMap(({ method, route }) =>
    [method].flat().flatMap((each) => [route].flat().map((path) => `${each} ${path}`)),
  )
  expect(routes.filter((route) => !route.startsWith('get ')).toSorted()).toEqual(Object.keys(WRITES).toSorted())
})

describe('STATE-17: retry of a delivery', () => {
  test.each(STATES.filter((state) => state !== 'failed' && state !== 'aborted'))(
    'of a job that is %s is refused and changes nothing',
    async (state) => {
      const { jobId, queue, delivery, calls } = await stageJob(state)
      const [stand, before] = [await standOf(jobId), calls()]
      const word = state === 'waiting' ? 'running' : state
      expect(await act(`/${queue}/${delivery}/retry`)).toMatchObject({
        status: 400,
        answer: {
          error: 'The request is not valid.',
          message: `Only a failed or aborted job can be retried; this one is ${word}.`,
        },
      })
      await untilWorkerIsThrough()
      expect(await standOf(jobId)).toEqual(stand)
      expect(calls()).toBe(before)
      await endAll()
    },
  )

  test.each(['failed', 'aborted'] as const)(
    'of a job that is %s lets it go on as a new generation, by the operator',
    async (state) => {
      const { jobId, queue, delivery, calls } = await stageJob(state)
      expect(await act(`/${queue}/${delivery}/retry`)).toEqual({ status: 204, answer: {} })
      await waitUntil(async () => (await stateOf(jobId)) === 'completed')
      expect(await standOf(jobId)).toMatchObject({ generation: 2, result: 'done after all' })
      expect(calls()).toBe(2)
      const retried = await api.stage.runtime.database.agentEvent.findFirst({ where: { jobId, kind: 'retried' } })
      expect(retried?.actorId).toBe('operator:ops')
      // What failed is no longer shown as a failure.
      expect(await deliveryStateOf(queue, delivery)).toBe('unknown')
    },
  )

  test('by an admin with an API key names that admin', async () => {
    const { jobId, queue, delivery } = await stageJob('failed')
    await act(`/${queue}/${delivery}/retry`, { headers: { authorization: `Bearer ${api.keys.admin}` } })
    const retried = await api.stage.runtime.database.agentEvent.findFirst({ where: { jobId, kind: 'retried' } })
    expect(retried?.actorId).toBe('admin')
    await waitUntil(async () => (await stateOf(jobId)) === 'completed')
  })

  test('of a job that needs more steps says so', async () => {
    const { jobId, queue, delivery } = await stageJob('failed')
    await api.stage.runtime.database.agentJob.update({ where: { id: jobId }, data: { steps: 25 } })
    const { status, answer } = await act(`/${queue}/${delivery}/retry`)
    expect(status).toBe(400)
    expect(answer['message']).toBe('The job has made 25 of 25 steps. Give a larger maxSteps to retry it.')
    expect(await stateOf(jobId)).toBe('failed')
  })
})

describe('STATE-17: clean of a delivery', () => {
  test.each(['pending', 'running'] as const)('of a job that is %s aborts it, by the operator', async (state) => {
    const { jobId, queue, delivery, calls } = await stageJob(state)
    const before = calls()
    expect(await act(`/${queue}/${delivery}/clean`)).toEqual({ status: 204, answer: {} })
    expect(await standOf(jobId)).toMatchObject({ state: 'aborted', reason: 'aborted_by_user', generation: 1 })
    const ended = await api.stage.runtime.database.agentEvent.findFirst({ where: { jobId, kind: 'ended' } })
    expect(ended?.actorId).toBe('operator:ops')
    await waitUntil(async () => !['active', 'prioritized'].includes(await deliveryStateOf(queue, delivery)))
    await untilWorkerIsThrough()
    expect(calls()).toBe(before)
  })

  test.each(['completed', 'failed', 'aborted'] as const)(
    'of a job that is %s takes the delivery away and leaves the job alone',
    async (state) => {
      const { jobId, queue, delivery, calls } = await stageJob(state)
      const [stand, before, history] = [await standOf(jobId), calls(), await eventsOf(api.stage, jobId)]
      expect(await act(`/${queue}/${delivery}/clean`)).toEqual({ status: 204, answer: {} })
      expect(await deliveryStateOf(queue, delivery)).toBe('unknown')
      await untilWorkerIsThrough()
      expect(await standOf(jobId)).toEqual(stand)
      expect(await eventsOf(api.stage, jobId)).toEqual(history)
      expect(calls()).toBe(before)
      expect(await act(`/${queue}/${delivery}/clean`)).toMatchObject({
        status: 404,
        answer: { message: 'The queue does not have this delivery any more.' },
      })
    },
  )

  test('of a job that waits takes history away; the job is woken all the same', async () => {
    const { jobId, queue, delivery } = await stageJob('waiting')
    expect((await act(`/${queue}/${delivery}/clean`)).status).toBe(204)
    expect(await stateOf(jobId)).toBe('waiting')
    const child = await api.stage.runtime.database.agentJob.findFirstOrThrow({ where: { parentJobId: jobId } })
    expect((await act(`/agents-slow/${child.id}-1/clean`)).status).toBe(204)
    await waitUntil(async () => (await stateOf(jobId)) === 'completed')
    expect(await stateOf(child.id)).toBe('aborted')
  })

  test('that a later one has replaced leaves the job alone', async () => {
    const { jobId, queue, delivery } = await stageJob('pending')
    await api.stage.runtime.database.agentJob.update({ where: { id: jobId }, data: { deliverySeq: 2 } })
    expect((await act(`/${queue}/${delivery}/clean`)).status).toBe(204)
    expect(await deliveryStateOf(queue, delivery)).toBe('unknown')
    expect(await stateOf(jobId)).toBe('pending')
    await endAll()
  })

  test('that carries no agent job is refused', async () => {
    const queue = api.stage.runtime.deliveries.lane('slow')
    await queue.add('stray', { anything: true }, { jobId: 'stray-1' })
    for (const action of ['retry', 'clean'])
      expect(await act(`/agents-slow/stray-1/${action}`)).toMatchObject({
        status: 400,
        answer: { message: 'This is not a delivery of an agent job.' },
      })
    await queue.remove('stray-1')
  })
})

describe('STATE-17: what is switched off', () => {
  test('changes no job of any state', async () => {
    const jobs = new Map<State, Staged>()
    for (const state of STATES) jobs.set(state, await stageJob(state))
    const looks = () =>
      Promise.all(
        [...jobs.values()].map(async ({ jobId, queue, delivery, calls }) => ({
          ...(await standOf(jobId)),
          delivery: await deliveryStateOf(queue, delivery),
          data: (await api.stage.runtime.deliveries.lane(queue.replace('agents-', '')).getJob(delivery))?.data,
          calls: calls(),
        })),
      )
    const before = await looks()
    for (const { queue, delivery } of jobs.values()) {
      for (const [method, route] of OFF) {
        const path = route.replace(':queueName', queue).replace(':jobId', delivery).replace(':schedulerId', 'any')
        const answer = await act(path, { method: method.toUpperCase(), body: BODIES[route.split('/').at(-1) ?? ''] })
        expect([path, answer]).toMatchObject([
          path,
          { status: 405, answer: { error: 'This action is switched off.', message: expect.stringContaining('Retry') } },
        ])
      }
      for (const status of ['wait', 'active', 'delayed', 'prioritized', 'paused', 'latest'])
        expect((await act(`/${queue}/clean/${status}`)).status).toBe(405)
      for (const status of ['completed', 'waiting', 'active'])
        expect((await act(`/${queue}/retry/${status}`)).status).toBe(405)
    }
    await untilWorkerIsThrough()
    expect(await looks()).toEqual(before)
    expect(await api.stage.runtime.deliveries.lane('default').getGlobalConcurrency()).toBeNull()
    await endAll()
  })

  test.each([
    ['POST', '/agents-default/pause'],
    ['DELETE', '/agents-default'],
    ['PUT', '/agents-default/new-action'],
    ['PATCH', '/agents-default/x/new-action'],
    ['PURGE', '/agents-default'],
  ])('so is a route that no version of the board has: %s %s', async (method, path) => {
    expect((await act(path, { method })).status).toBe(405)
  })
})

describe('STATE-17: all at once', () => {
  test('retry brings back each failed job, and no other', async () => {
    const jobs = [await stageJob('failed'), await stageJob('failed')]
    const rest = [await stageJob('completed'), await stageJob('aborted'), await stageJob('running')]
    const stands = await Promise.all(rest.map(({ jobId }) => standOf(jobId)))
    expect(await act('/agents-default/retry/failed')).toEqual({ status: 200, answer: { retried: 2, skipped: 0 } })
    for (const { jobId, calls } of jobs) {
      await waitUntil(async () => (await stateOf(jobId)) === 'completed')
      expect(calls()).toBe(2)
    }
    expect(await Promise.all(rest.map(({ jobId }) => standOf(jobId)))).toEqual(stands)
    expect(await act('/agents-default/retry/failed')).toEqual({ status: 200, answer: { retried: 0, skipped: 0 } })
    await endAll()
  })

  test('retry tells of those that cannot go on, and brings back the others', async () => {
    const [good, bad] = [await stageJob('failed'), await stageJob('failed')]
    await api.stage.runtime.database.agentJob.update({ where: { id: bad.jobId }, data: { steps: 25 } })
    const { status, answer } = await act('/agents-default/retry/failed')
    expect(status).toBe(400)
    expect(answer['message']).toBe(
      `1 of 2 failed jobs were not retried. Job ${bad.jobId}: The job has made 25 of 25 steps. Give a larger maxSteps to retry it.`,
    )
    await waitUntil(async () => (await stateOf(good.jobId)) === 'completed')
    expect(await stateOf(bad.jobId)).toBe('failed')
    await endAll()
  })

  test('clean takes history away and leaves every job as it is', async () => {
    const jobs = await Promise.all(STATES.map((state) => stageJob(state)))
    const stands = await Promise.all(jobs.map(({ jobId }) => standOf(jobId)))
    const before = jobs.map(({ calls }) => calls())
    for (const status of ['completed', 'failed'] as const) {
      expect(await act(`/agents-default/clean/${status}`)).toEqual({ status: 200, answer: {} })
      expect(await api.stage.runtime.deliveries.lane('default').getJobCountByTypes(status)).toBe(0)
    }
    await untilWorkerIsThrough()
    expect(await Promise.all(jobs.map(({ jobId }) => standOf(jobId)))).toEqual(stands)
    expect(jobs.map(({ calls }) => calls())).toEqual(before)
    await endAll()
  })
})

describe('STUCK-20: pause and resume', () => {
  test.each([
    ['one queue', '/agents-default'],
    ['all of them', ''],
  ])('of %s show in health, and hold what is queued', async (_, path) => {
    const running = await stageJob('running')
    expect(await act(`${path}/pause`)).toEqual({ status: 200, answer: {} })
    const { body } = await api.json('/api/health')
    expect(body).toMatchObject({ queue: { paused: true } })
    raw.answer('held', says('free'))
    const held = await api.spawn('alice', { message: 'held' })
    const timed = await api.spawn('alice', { message: 'too late' })
    const { database } = api.stage.runtime
    await database.agentJob.update({ where: { id: timed }, data: { queueTimeoutMs: 1 } })
    await waitUntil(async () => (await stateOf(timed)) === 'failed')
    expect(await standOf(timed)).toMatchObject({ reason: 'timeout_queue' })
    expect(await stateOf(running.jobId)).toBe('running')
    expect(await stateOf(held)).toBe('pending')
    expect(raw.requests('held')).toHaveLength(path === '' ? 1 : 0)
    expect(await act(`${path}/resume`)).toEqual({ status: 200, answer: {} })
    await waitUntil(async () => (await stateOf(held)) === 'completed')
    expect((await api.json('/api/health')).body).toMatchObject({ queue: { paused: false } })
    await endAll()
  })

  test('of a queue that the board does not have are refused', async () => {
    expect(await act('/agents-other/pause')).toMatchObject({
      status: 404,
      answer: { message: 'The board has no such queue.' },
    })
  })
})

describe('STATE-17: an action from another site', () => {
  const cases: [string, () => Record<string, string>, boolean][] = [
    ['a client that is no browser', () => ({}), true],
    ['the board itself', () => ({ 'sec-fetch-site': 'same-origin', origin: api.url }), true],
    ['the board behind a proxy', () => ({ 'sec-fetch-site': 'same-origin', origin: 'https://ops.example' }), true],
    ['a browser without Sec-Fetch-Site, on the board', () => ({ origin: api.url }), true],
    ['another site', () => ({ 'sec-fetch-site': 'cross-site', origin: 'https://evil.example' }), false],
    ['a neighbour on the same domain', () => ({ 'sec-fetch-site': 'same-site', origin: api.url }), false],
    ['another site in an older browser', () => ({ origin: 'https://evil.example' }), false],
    ['another port of this host', () => ({ origin: 'http://127.0.0.1:1' }), false],
    ['a page without an origin', () => ({ origin: 'null' }), false],
  ]
  test.each(cases)('%s', async (_, headers, allowed) => {
    const { status, answer } = await act('/agents-slow/pause', { headers: { ...ops, ...headers() } })
    expect(status).toBe(allowed ? 200 : 403)
    expect(answer['error']).toBe(allowed ? undefined : 'The request comes from another site.')
    expect(await api.stage.runtime.deliveries.lane('slow').isPaused()).toBe(allowed)
    await act('/agents-slow/resume')
  })

  test('nor does an action work without a login, or for a user', async () => {
    for (const headers of [{}, { authorization: `Bearer ${api.keys.alice}` }])
      expect([401, 403]).toContain((await act('/agents-slow/pause', { headers })).status)
    expect(await api.stage.runtime.deliveries.lane('slow').isPaused()).toBe(false)
  })
})

test('STATE-17: the page is told which buttons there are', async () => {
  const { queues } = (await (await api.call('/admin/queues/api/queues', { headers: ops })).json()) as {
    queues: unknown[]
  }
  const buttons = { readOnlyMode: false, allowRetries: true, allowCompletedRetries: true }
  expect(queues).toMatchObject([buttons, buttons])
})

test('STATE-17: an action says when Redis is away', async () => {
  const away = await openApi({ ...LOGIN }, { cuttable: 'REDIS_URL' })
  try {
    await away.service?.cut()
    await waitUntil(async () => (await away.call('/readyz')).status === 503)
    const response = await away.call('/admin/queues/api/queues/agents-default/pause', { method: 'PUT', headers: ops })
    expect(response.status).toBe(503)
    expect(await response.json()).toMatchObject({
      error: 'A service that is needed does not answer.',
      message: 'Redis did not answer in time. Look at the queue again in a moment.',
    })
  } finally {
    await away.close()
  }
})
