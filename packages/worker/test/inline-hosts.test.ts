// A host that runs jobs in its own process, through what a host imports: without Redis, and beside a fleet of workers.
import { createOffshoot, type Offshoot, type OffshootOptions } from '@offshoot/shared'
import type { AgentOutcome } from '@offshoot/shared/agent-handle'
import { startReconciler } from '@offshoot/shared/operations/reconcile'
import { retryAgent } from '@offshoot/shared/operations/retry-agent'
import { spawnAgent } from '@offshoot/shared/operations/spawn-agent'
import { abort, childrenOf, endOf, eventsOf, readJob, spawnOf, untilLiveText } from '@offshoot/testing/agents'
import { hostOrigin, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { callsTool, type RawModel, says, startRawModel, staysSilent, ticking } from '@offshoot/testing/raw-model'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { isStepCount, streamText } from 'ai'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { createInlineRunner } from '../src/inline-runner.ts'
import { startWorker } from '../src/worker.ts'

let raw: RawModel
let stage: TestStage
beforeAll(async () => {
  raw = await startRawModel()
  stage = await openTestStage({ environment: { OPENAI_BASE_URL: raw.baseUrl } })
  for (const handle of ['bot', 'writer']) await stage.putBot(handle)
  await stage.putBot('inline-bot', { runner: 'inline' })
})
afterAll(async () => {
  await stage.close()
  await raw.stop()
})

let open: Offshoot[] = []
afterEach(async () => {
  await Promise.all(open.map((host) => host.close()))
  open = []
})

/** A host on the stage's database; without Redis unless `redis` is set. */
async function openHost({ redis = false, ...options }: OffshootOptions & { redis?: boolean } = {}): Promise<Offshoot> {
  const environment = { ...stage.environment, ...(redis ? {} : { REDIS_URL: '' }), ...options.environment }
  const defaults = { extensions: {}, inlineRunner: createInlineRunner }
  const host = await createOffshoot({ ...defaults, ...options, environment })
  open.push(host)
  return host
}

const alice = {
  userId: 'alice',
  parentConvoId: 'chat',
  parentConvoOwnerId: 'alice',
  parentConvoSpaceId: null,
  spawnDepth: 0,
}
const inline = (message: string) => ({ ...spawnOf('bot', message), runner: 'inline' as const })
const looks = callsTool('checkAgent', { jobId: 'nothing' })
const jobOf = ({ jobId }: AgentOutcome) => readJob(stage, jobId)
const retryOf = (jobId: string) => retryAgent(stage.runtime, { userId: 'alice', admin: false }, { jobId }, 'alice')

test('without Redis a host runs a job and its sub-agents in its own process, and their rows say so', async () => {
  const host = await openHost()
  raw.answer('ask inline', callsTool('spawnAgent', spawnOf('bot', 'answer inline')), says('asked'))
  raw.answer('answer inline', says('answered'))
  const outcome = await host.run(alice, inline('ask inline'))
  expect(outcome).toMatchObject({ mode: 'sync', state: 'completed', result: 'asked', steps: 2 })
  const job = await jobOf(outcome)
  const [child] = await childrenOf(stage, job.id)
  expect(child).toMatchObject({ runner: 'inline', state: 'completed', result: 'answered', workerId: job.workerId })
  expect(await stage.runtime.database.worker.findUnique({ where: { id: job.workerId ?? '' } })).toMatchObject({
    pid: process.pid,
    lanes: [],
  })
})

async function runnerOf(offshoot: Offshoot, input: object): Promise<string> {
  const { id } = await offshoot.spawn(alice, { ...spawnOf('bot', 'where?', { mode: 'async' }), ...input })
  return (await readJob(stage, id)).runner
}

test('the call says where a job runs, else its bot, else the config module, else it is the queue', async () => {
  const host = await openHost({ redis: true, extensions: { runner: 'inline' } })
  const plain = await openHost({ redis: true })
  raw.answer('where?', says('here'))
  const inlineBot = { bot: { botGroup: 'forge', botHandle: 'inline-bot' } }
  expect(await runnerOf(host, {})).toBe('inline')
  expect(await runnerOf(host, { runner: 'queue' })).toBe('queue')
  expect(await runnerOf(plain, {})).toBe('queue')
  expect(await runnerOf(plain, inlineBot)).toBe('inline')
  expect(await runnerOf(plain, { ...inlineBot, runner: 'queue' })).toBe('queue')
})

describe('a spawn that cannot run where it should is refused with what to do:', () => {
  const refusal = { mode: 'sync', state: 'failed', jobId: '', reason: 'invalid_request' }

  test('inline in a host that has no inline runner', async () => {
    const host = await createOffshoot({ environment: stage.environment, extensions: {} })
    open.push(host)
    expect(await host.run(alice, inline('nowhere'))).toMatchObject({
      ...refusal,
      error: expect.stringMatching(
        /^The runner "inline" is not available here\. .*createOffshoot\(\{ inlineRunner: createInlineRunner \}\)\.$/,
      ),
    })
  })

  test('on the queue in a host without Redis', async () => {
    const host = await openHost()
    expect(await host.run(alice, spawnOf('bot', 'nowhere'))).toMatchObject({
      ...refusal,
      error: expect.stringMatching(/^The runner "queue" is not available here: .*Set REDIS_URL, or set runner to "inl/),
    })
  })

  test('elsewhere than the parent runs, in the name of a running job', async () => {
    const host = await openHost({ redis: true })
    const parent = await spawnJob(stage.runtime, 'alice')
    const context = { ...alice, parentJobId: parent.id, spawnDepth: 1 }
    expect(await host.run(context, inline('elsewhere'))).toMatchObject({
      ...refusal,
      error: 'A sub-agent runs where its parent runs, on the runner "queue". Leave runner out.',
    })
    const child = await host.spawn(context, {
      ...spawnOf('inline-bot', 'with its parent', { mode: 'async' }),
    })
    expect(await readJob(stage, child.id)).toMatchObject({ runner: 'queue', parentJobId: parent.id, workerId: null })
    await abort(stage, parent.id)
  })

  test('without Redis only a host with an inline runner opens at all', async () => {
    const environment = { ...stage.environment, REDIS_URL: '' }
    await expect(createOffshoot({ environment, extensions: {} })).rejects.toThrow('REDIS_URL is missing')
  })
})

test("a host's own streamText lets sub-agents work inline, and shows them as they grow", async () => {
  const host = await openHost({ extensions: { runner: 'inline' } })
  const grown = Promise.withResolvers<void>()
  raw.answer('Ask the bot.', callsTool('spawnAgent', spawnOf('bot', 'grow inline')), says('It grew.'))
  raw.answer('grow inline', async (reply) => {
    const timer = setInterval(() => reply.text('Growing. '), 50)
    await grown.promise
    clearInterval(timer)
    reply.finish()
  })
  const openai = stage.runtime.extensions.providers.get('openai')?.({ userId: 'alice', jobId: '' })
  if (openai === undefined) throw new Error('there is no provider')
  const result = host.runWithSpawnContext(alice, () =>
    streamText({
      model: openai.languageModel('gpt-5'),
      prompt: 'Ask the bot.',
      tools: host.tools(),
      stopWhen: isStepCount(3),
    }),
  )
  for await (const part of result.stream) {
    if (part.type === 'tool-result' && part.preliminary === true && JSON.stringify(part.output).includes('Growing'))
      grown.resolve()
  }
  expect(await result.text).toBe('It grew.')
})

test('beside a fleet: viewers elsewhere follow an inline job, others abort it, and workers leave it alone', async () => {
  const host = await openHost({ redis: true })
  const worker = await startWorker(stage.runtime)
  try {
    raw.answer('be watched', ticking)
    const spawned = host.run(alice, inline('be watched'))
    const job = await waitUntil(() =>
      stage.runtime.database.agentJob.findFirst({ where: { inputMessage: 'be watched' } }),
    )
    await untilLiveText(stage, job.id, 'tick')
    const before = performance.now()
    expect(await abort(stage, job.id)).toMatchObject({ state: 'aborted' })
    // A heartbeat (500 ms) and a second.
    expect(performance.now() - before).toBeLessThan(1_500)
    expect(await spawned).toMatchObject({ state: 'aborted', partial: true })
    expect(await stage.runtime.deliveries.lane('default').getJob(`${job.id}-1`)).toBeUndefined()
  } finally {
    await worker.drain()
  }
})

test('STUCK-4: without Redis an abort by another process is seen at the next heartbeat, and so is the end of a wait', async () => {
  const host = await openHost()
  raw.answer('wait here', callsTool('spawnAgent', spawnOf('bot', 'tick here')), says('went on'))
  raw.answer('tick here', ticking)
  const spawned = host.run(alice, inline('wait here'))
  await waitUntil(() => raw.requests('tick here').length === 1)
  const parent = await stage.runtime.database.agentJob.findFirstOrThrow({ where: { inputMessage: 'wait here' } })
  const [child] = await childrenOf(stage, parent.id)
  expect(await abort(stage, child?.id ?? '')).toMatchObject({ state: 'aborted' })
  const { abortRequestedAt, finishedAt } = await readJob(stage, child?.id ?? '')
  // A heartbeat (500 ms) and a second.
  expect((finishedAt?.getTime() ?? 0) - (abortRequestedAt?.getTime() ?? 0)).toBeLessThan(1_500)
  expect(await spawned).toMatchObject({ state: 'completed', result: 'went on' })

  // A wait that is ended elsewhere: by another reconciler, which cannot bring the delivery here.
  raw.answer('retry here', (reply) => reply.status(429, { message: 'no' }, { 'retry-after': '30' }), says('there'))
  const retried = host.run(alice, inline('retry here'))
  const waiting = await waitUntil(() =>
    stage.runtime.database.agentJob.findFirst({ where: { inputMessage: 'retry here', waitingOn: 'retry' } }),
  )
  const until = new Date(Date.now() + 60_000)
  await stage.runtime.database.lease.update({ where: { name: 'reconciler-inline' }, data: { holder: 'x', until } })
  const reconciler = startReconciler(stage.runtime, { holder: 'elsewhere' })
  try {
    await stage.runtime.database.agentJob.update({ where: { id: waiting.id }, data: { waitUntil: new Date(0) } })
    expect(await retried).toMatchObject({ state: 'completed', result: 'there' })
    expect(await eventsOf(stage, waiting.id)).toEqual(['spawned', 'waiting', 'woken', 'ended'])
  } finally {
    await reconciler.stop()
    await stage.runtime.database.lease.deleteMany({ where: { name: 'reconciler-inline' } })
  }
})

test('LOSS-9: a process without Redis leaves to others what is to go through Redis', async () => {
  const { database } = stage.runtime
  await openHost()
  const job = await spawnJob(stage.runtime, 'alice')
  await waitUntil(async () => (await database.outbox.count({ where: { jobId: job.id, doneAt: null } })) === 0)
  // Due to be told again, and due to be asked about; the delivery itself is gone.
  await stage.runtime.deliveries.remove(job.lane, job.id, job.deliverySeq)
  await database.outbox.updateMany({ where: { jobId: job.id }, data: { doneAt: null, nextAttemptAt: new Date(0) } })
  await database.agentJob.update({ where: { id: job.id }, data: { deliveredAt: new Date(0) } })
  // Its reconciler makes two whole rounds.
  for (let round = 0; round < 3; round += 1) {
    const lease = await database.lease.findUnique({ where: { name: 'reconciler-inline' } })
    await waitUntil(() =>
      database.lease.findFirst({ where: { name: 'reconciler-inline', until: { gt: lease?.until ?? new Date(0) } } }),
    )
  }
  expect(await database.outbox.findFirst({ where: { jobId: job.id } })).toMatchObject({ attempts: 0, doneAt: null })
  expect(await readJob(stage, job.id)).toMatchObject({ deliverySeq: 1, state: 'pending' })
  const reconciler = startReconciler(stage.runtime, { holder: 'with-redis' })
  await waitUntil(() => stage.runtime.deliveries.isUnderway(job.lane, job.id, 1))
  await reconciler.stop()
  await abort(stage, job.id)
})

/** Opens a host, spawns inline, and answers when the model has been asked. */
async function running(message: string) {
  const host = await openHost()
  const spawned = host.run(alice, inline(message))
  await waitUntil(() => raw.requests(message).length > 0)
  const job = await stage.runtime.database.agentJob.findFirstOrThrow({ where: { inputMessage: message } })
  return { host, spawned, job }
}
const drainsNow = (job: { workerId: string | null }) =>
  waitUntil(() =>
    stage.runtime.database.worker.findFirst({ where: { id: job.workerId ?? '', drainingAt: { not: null } } }),
  )

describe('close', () => {
  test('LOSS-11: a job that ends within its step completes', async () => {
    const finish = Promise.withResolvers<void>()
    raw.answer('nearly done', async (reply) => {
      reply.text('The end')
      await finish.promise
      reply.finish()
    })
    const { host, spawned, job } = await running('nearly done')
    const closed = host.close()
    await drainsNow(job)
    finish.resolve()
    expect(await spawned).toMatchObject({ state: 'completed', result: 'The end' })
    await closed
    expect(await stage.runtime.database.worker.count({ where: { id: job.workerId ?? '' } })).toBe(0)
  })

  test('LOSS-11: a job with more to do ends after its step as aborted_by_shutdown, and goes on on the queue when it is retried', async () => {
    const finish = Promise.withResolvers<void>()
    raw.answer(
      'more to do',
      async (reply) => {
        reply.text('First. ')
        await finish.promise
        reply.call('checkAgent', { jobId: 'nothing' }, 'call_look')
        reply.call('spawnAgent', spawnOf('bot', 'later'), 'call_spawn')
        reply.finish()
      },
      says('Second.'),
    )
    raw.answer('later', says('helped'))
    const { host, spawned, job } = await running('more to do')
    const closed = host.close()
    await drainsNow(job)
    expect(await host.run(alice, inline('too late'))).toMatchObject({
      jobId: '',
      error: 'The runner "inline" takes nothing more: this process is closing.',
    })
    finish.resolve()
    expect(await spawned).toMatchObject({
      state: 'aborted',
      reason: 'aborted_by_shutdown',
      result: 'First. ',
      partial: true,
      steps: 1,
    })
    await closed
    expect(await eventsOf(stage, job.id)).toEqual(['spawned', 'handed-back', 'ended'])
    expect(await childrenOf(stage, job.id)).toEqual([])

    expect(await retryOf(job.id)).toMatchObject({ kind: 'retried', job: { runner: 'queue', generation: 2 } })
    const worker = await startWorker(stage.runtime)
    expect(await endOf(stage, job.id)).toMatchObject({ state: 'completed', result: 'Second.', steps: 2 })
    await worker.drain()
    expect(await childrenOf(stage, job.id)).toMatchObject([{ state: 'completed', result: 'helped', runner: 'queue' }])
    expect(raw.requests('more to do')).toHaveLength(2)
  })

  test('LOSS-11: a step that outlasts the drain limit is cut; who waits and who waits for a slot ends, too', async () => {
    raw.answer('hold on', (reply) => {
      reply.text('Asking. ')
      reply.call('spawnAgent', spawnOf('bot', 'silent'), 'call_a')
      reply.call('spawnAgent', spawnOf('bot', 'no slot'), 'call_b')
      reply.finish()
    })
    raw.answer('silent', looks, staysSilent)
    const host = await openHost({ environment: { WORKER_CONCURRENCY: '1', WORKER_DRAIN_MS: '500' } })
    const spawned = host.run(alice, inline('hold on'))
    await waitUntil(() => raw.requests('silent').length === 2)
    const before = performance.now()
    await host.close()
    expect(performance.now() - before).toBeLessThan(3_000)
    const outcome = await spawned
    expect(outcome).toMatchObject({ state: 'aborted', reason: 'aborted_by_shutdown', result: 'Asking. ', steps: 1 })
    const children = await childrenOf(stage, outcome.jobId)
    expect(children.map(({ state, reason, steps }) => `${state} ${reason} ${steps}`)).toEqual([
      'aborted aborted_by_shutdown 1',
      'aborted aborted_by_shutdown 0',
    ])
    expect(raw.requests('no slot')).toEqual([])
    await waitUntil(() => raw.requests('silent')[1]?.closedByPeerAt)
  })

  const ways: [string, (host: Offshoot, input: ReturnType<typeof inline>) => Promise<AgentOutcome>][] = [
    ['run', (host, input) => host.run(alice, input)],
    ['a handle', async (host, input) => (await host.spawn(alice, input)).await()],
  ]
  test.each(ways)(
    'everybody who waits for an outcome by %s has it when the host has closed',
    async (way, outcomeBy) => {
      const message = `one of many by ${way}`
      raw.answer(message, staysSilent)
      const host = await openHost({
        environment: { WORKER_CONCURRENCY: '1', WORKER_DRAIN_MS: '0', DATABASE_POOL_SIZE: '1' },
      })
      const spawned = Array.from({ length: 60 }, () => outcomeBy(host, inline(message)))
      const jobs = { where: { inputMessage: message } }
      await waitUntil(async () => (await stage.runtime.database.agentJob.count(jobs)) === 60)
      await waitUntil(() => raw.requests(message).length === 1)
      const outcomes: AgentOutcome[] = []
      for (const each of spawned) void each.then((outcome) => outcomes.push(outcome))
      await host.close()
      expect(outcomes.map((outcome) => 'reason' in outcome && outcome.reason)).toEqual(
        Array.from({ length: 60 }, () => 'aborted_by_shutdown'),
      )
    },
  )
})

test('STATE-7: a process that was declared lost has lost its jobs, and runs new ones under a new id', async () => {
  const host = await openHost()
  raw.answer('be forgotten', looks, ticking)
  const spawned = host.run(alice, inline('be forgotten'))
  await waitUntil(() => raw.requests('be forgotten').length === 2)
  const job = await stage.runtime.database.agentJob.findFirstOrThrow({ where: { inputMessage: 'be forgotten' } })
  await stage.runtime.database.worker.delete({ where: { id: job.workerId ?? '' } })
  expect(await spawned).toMatchObject({ state: 'failed', reason: 'worker_lost', partial: true, steps: 1 })
  await waitUntil(() => raw.requests('be forgotten')[1]?.closedByPeerAt)
  // The host has noticed once it is there again under a new id.
  await waitUntil(async () => (await stage.runtime.database.worker.count({ where: { pid: process.pid } })) === 1)
  raw.answer('still here?', says('yes'))
  const outcome = await host.run(alice, inline('still here?'))
  expect(outcome).toMatchObject({ state: 'completed', result: 'yes' })
  expect((await jobOf(outcome)).workerId).not.toBe(job.workerId)
})

test('an idempotent spawn that is repeated on another host finds the job of the first', async () => {
  const [first, second] = [await openHost(), await openHost()]
  raw.answer('only once', says('once'))
  const options = { idempotencyKey: 'only-once' }
  const [one, two] = [
    await first.run(alice, inline('only once'), options),
    await second.run(alice, inline('only once'), options),
  ]
  expect(two).toEqual(one)
  expect(raw.requests('only once')).toHaveLength(1)
})

test('the HTTP API’s process refuses inline', async () => {
  const input = { ...spawnOf('bot', 'over HTTP'), mode: 'async' as const, runner: 'inline' as const }
  expect(await spawnAgent(stage.runtime, hostOrigin('alice'), input)).toMatchObject({
    kind: 'refused',
    refusal: { reason: 'invalid_request', error: expect.stringContaining('set runner to "queue"') },
  })
})
