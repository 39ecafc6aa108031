// Postgres breaks a connection at the worst moment: a commit that got no answer was made once, and not twice.
import { eventsOf, readJob } from '@offshoot/testing/agents'
import {
  acceptedJob,
  claimNext,
  claimOf,
  COMPLETED,
  hostOrigin,
  spawnChildren,
  spawnInput,
  spawnJob,
} from '@offshoot/testing/jobs-without-worker'
import { startTcpProxy, type TcpProxy } from '@offshoot/testing/tcp-proxy'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { loadConfig } from '../src/config.ts'
import { claimJob } from '../src/db/agent-jobs.ts'
import { openDatabase, sql } from '../src/db/database.ts'
import { isTransientDatabaseError } from '../src/db/database-errors.ts'
import { newId } from '../src/ids.ts'
import { requestAbort } from '../src/operations/abort-agent.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { handBack } from '../src/operations/hand-back.ts'
import { spawnAgent } from '../src/operations/spawn-agent.ts'
import { startTurn } from '../src/operations/start-turn.ts'
import { transact } from '../src/operations/transact.ts'
import { openRuntime, type Runtime } from '../src/runtime.ts'

let stage: TestStage
let proxy: TcpProxy
let runtime: Runtime
beforeAll(async () => {
  stage = await openTestStage({ environment: { MAX_ACTIVE_JOBS_PER_USER: '5' } })
  await stage.putBot('writer')
  proxy = await startTcpProxy(stage.config.DATABASE_URL)
  const config = loadConfig({ ...stage.environment, DATABASE_URL: proxy.url })
  runtime = openRuntime({ ...stage.runtime, config, name: 'proxied' })
})
afterAll(async () => {
  await runtime.close()
  await proxy.close()
  await stage.close()
})

test('LOSS-9: a spawn whose commit got no answer is accepted, once', async () => {
  proxy.loseAnswerOf('commit')
  const job = await spawnJob(runtime, 'alice')
  const { database } = stage.runtime
  expect(await database.agentJob.findMany({ where: { ownerId: 'alice' }, select: { id: true } })).toEqual([
    { id: job.id },
  ])
  expect(await database.convo.count({ where: { ownerId: 'alice' } })).toBe(1)
  expect(await database.agentTree.findUnique({ where: { rootJobId: job.id } })).toMatchObject({ jobs: 1 })
  expect(await eventsOf(stage, job.id)).toEqual(['spawned'])
})

test('LOSS-9: nor is it refused when it was the last one that its user may have', async () => {
  for (let made = 0; made < 4; made += 1) await spawnJob(runtime, 'gina')
  proxy.loseAnswerOf('commit')
  const job = await spawnJob(runtime, 'gina')
  expect(await stage.runtime.database.agentJob.count({ where: { ownerId: 'gina' } })).toBe(5)
  expect(await eventsOf(stage, job.id)).toEqual(['spawned'])
  expect(await spawnAgent(runtime, hostOrigin('gina'), spawnInput())).toMatchObject({ refusal: { reason: 'cap' } })
})

test('STATE-10: nor does a spawn with a key, or the spawns of a step, become two', async () => {
  proxy.loseAnswerOf('commit')
  const answer = await spawnAgent(runtime, hostOrigin('bob', { idempotencyKey: 'k' }), spawnInput())
  const parent = await claimNext(runtime, acceptedJob(answer).id)
  proxy.loseAnswerOf('COMMIT')
  const { children } = await spawnChildren(runtime, parent, [{}, {}])
  expect(children).toHaveLength(2)
  expect(await stage.runtime.database.agentJob.count({ where: { ownerId: 'bob' } })).toBe(3)
})

test('LOSS-1: an end and an abort whose commit got no answer are written once', async () => {
  const job = await claimNext(runtime, (await spawnJob(runtime, 'carol')).id)
  proxy.loseAnswerOf('COMMIT')
  expect(await finishAgent(runtime, job, { guard: claimOf(job), ending: COMPLETED })).toMatchObject({
    state: 'completed',
  })
  expect(await eventsOf(stage, job.id)).toEqual(['spawned', 'ended'])
  const queued = await spawnJob(runtime, 'carol')
  proxy.loseAnswerOf('COMMIT')
  expect((await requestAbort(runtime, queued, { by: 'carol', reason: 'aborted_by_user', text: null })).job.state).toBe(
    'aborted',
  )
  expect(await eventsOf(stage, queued.id)).toEqual(['spawned', 'abort-requested', 'ended'])
  expect(await readJob(stage, queued.id)).toMatchObject({ state: 'aborted' })
})

test('LOSS-1: a claim, an output and an end that many may share, and that get no answer, are made once', async () => {
  const { groups } = runtime
  const { id: jobId } = await spawnJob(runtime, 'hugo')
  const claim = { jobId, token: newId() }
  proxy.loseAnswerOf('"attempt" + 1')
  const job = await groups.claim({ ...claim, deliverySeq: 1, workerId: 'w' })
  if (job === null) throw new Error('the claim was not made')
  const output = {
    index: 0,
    generation: 1,
    parts: [{ type: 'text-delta' as const, id: 'a', delta: 'done' }],
    usage: { inputTokens: 10, outputTokens: 5, reasoningTokens: null, totalTokens: 15 },
    finishReason: 'stop',
    elapsedMs: 3,
    inboxSeqs: [],
  }
  proxy.loseAnswerOf('"AgentStep"')
  const { counters } = await groups.storeOutput({ claim, output })
  if (counters === null) throw new Error('the output was not stored')
  expect(counters).toMatchObject({ steps: 1, totalTokens: 15n })
  proxy.loseAnswerOf('commit')
  const lastStep = { output, messages: [] }
  const common = { job, claim, reason: 'completed' as const, result: 'done', parts: [], lastStep, counters }
  expect(await groups.end({ ...common, endsStep: false })).toBeNull()
  expect(await finishAgent(runtime, job, { guard: claim, ending: COMPLETED })).toMatchObject({ state: 'completed' })
  expect(await eventsOf(stage, jobId)).toEqual(['spawned', 'ended'])
  expect(await readJob(stage, jobId)).toMatchObject({ attempt: 1, steps: 1, totalTokens: 15n, result: 'done' })
})

test('LOSS-9: nor does a turn become two, or a steer of its own', async () => {
  const { database } = stage.runtime
  const bot = await database.bot.findFirstOrThrow()
  const convo = await database.convo.create({
    data: { id: newId(), botId: bot.id, botLabel: 'forge/writer', ownerId: 'dave' },
  })
  const send = (text: string) =>
    startTurn(runtime, {
      convoId: convo.id,
      userId: 'dave',
      message: { text, parts: [{ type: 'text', text }] },
      ifBusy: 'steer',
    })
  proxy.loseAnswerOf('COMMIT')
  expect(await send('hello')).toMatchObject({ kind: 'started' })
  proxy.loseAnswerOf('COMMIT')
  expect(await send('and then')).toMatchObject({ kind: 'steered' })
  expect(await database.agentJob.count({ where: { convoId: convo.id } })).toBe(1)
  expect(await database.aiMessage.count({ where: { convoId: convo.id } })).toBe(1)
  expect(await database.inboxItem.count()).toBe(1)
})

test('STUCK-7: a claim that got no answer is found by whoever makes it again, and by nobody else', async () => {
  const { id: jobId } = await spawnJob(runtime, 'frank')
  const claim = { jobId, token: newId(), deliverySeq: 1, workerId: 'w' }
  proxy.loseAnswerOf('"attempt" + 1')
  const error: unknown = await claimJob(runtime.database, claim).catch((reason: unknown) => reason)
  expect(isTransientDatabaseError(error)).toBe(true)
  expect(await claimJob(runtime.database, { ...claim, token: newId() })).toBeNull()
  expect(await claimJob(runtime.database, claim)).toMatchObject({ id: jobId, claimToken: claim.token, attempt: 1 })
})

test('a handed-back job whose commit got no answer is handed back once', async () => {
  const job = await claimNext(runtime, (await spawnJob(runtime, 'erin')).id)
  proxy.loseAnswerOf('COMMIT')
  await handBack(runtime, job, claimOf(job), 'handed-back')
  expect(await readJob(stage, job.id)).toMatchObject({ state: 'pending', deliverySeq: 2 })
  expect(await eventsOf(stage, job.id)).toEqual(['spawned', 'handed-back'])
})

test('STUCK-7: a statement whose connection falls silent fails like one whose connection breaks, and the next one is answered', async () => {
  const databaseUrl = proxy.url
  const database = openDatabase({ databaseUrl, poolSize: 1, applicationName: 'offshoot-silent', answerLimitMs: 300 })
  const statements = [
    () => database.direct.$queryRaw(sql`select 1`),
    () => database.$queryRaw(sql`select 1`),
    () => database.$transaction((tx) => tx.$queryRaw(sql`select 1`)),
    () => database.direct.lockThenWrite(sql`select 1`, () => sql`select 1`),
  ]
  for (const ask of statements) {
    await ask()
    proxy.silenceThose('offshoot-silent')
    const error: unknown = await ask().then(
      () => 'answered',
      (reason: unknown) => reason,
    )
    expect(isTransientDatabaseError(error), String(error)).toBe(true)
    await ask()
  }
  await database.$disconnect()
})

test('a transaction of which Postgres ends the session is tried again', async () => {
  let tries = 0
  const value = await transact(runtime, async (tx) => {
    tries += 1
    const [session] = await tx.db.$queryRaw<{ pid: number }[]>`select pg_backend_pid() as pid`
    if (tries === 1) await stage.runtime.database.$queryRaw`select pg_terminate_backend(${session?.pid}::int)`
    await tx.db.user.create({ data: { id: `try-${tries}` } })
    return tries
  })
  expect(value).toBe(2)
  const users = await stage.runtime.database.user.findMany({ where: { id: { startsWith: 'try-' } } })
  expect(users.map((user) => user.id)).toEqual(['try-2'])
})

test('what Postgres refuses for good is not tried again', async () => {
  let tries = 0
  const work = transact(runtime, async (tx) => {
    tries += 1
    await tx.db.$executeRaw`select 1 / 0`
  })
  await expect(work).rejects.toThrow(/division by zero/)
  expect(tries).toBe(1)
})
