// Postgres cuts sessions, locks a table, refuses a write or is gone for a while, under a load of running agents.
import { endOf, eventsOf, spawnRoot } from '@offshoot/testing/agents'
import { callsTool, type RawScript, says } from '@offshoot/testing/raw-model'
import { byRound, roundsOf } from '@offshoot/testing/raw-rounds'
import { openServiceStage, type ServiceStage } from '@offshoot/testing/service-stage'
import { startTcpProxy, type TcpProxy } from '@offshoot/testing/tcp-proxy'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'

const AGENTS = 20
const ANSWER_AFTER_MS = 400
const OUTAGE_MS = 5_000

let stage: ServiceStage
/** The ways of the workers and of the API to Postgres. */
let ways: Record<'worker' | 'api', TcpProxy>

async function openStage(lockMs: number): Promise<void> {
  stage = await openServiceStage({
    workers: 2,
    environment: { WORKER_LOCK_MS: String(lockMs), LOG_LEVEL: 'silent' },
    async processEnvironment({ config }) {
      const [worker, api] = await Promise.all([1, 2].map(() => startTcpProxy(config.DATABASE_URL)))
      if (worker === undefined || api === undefined) throw new Error('no proxies')
      ways = { worker, api }
      return { worker: { DATABASE_URL: worker.url }, api: { DATABASE_URL: api.url } }
    },
  })
}

async function closeStage(): Promise<void> {
  await stage.close()
  await Promise.all([ways.worker.close(), ways.api.close()])
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

async function cutSessions(): Promise<void> {
  for (let times = 0; times < 3; times += 1) {
    await stage.runtime.database.$queryRaw<unknown[]>`
      select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and application_name <> 'offshoot-test'`
    await pause(ANSWER_AFTER_MS)
  }
}

async function lockJobs(): Promise<void> {
  await stage.runtime.database.$transaction(
    async (tx) => {
      await tx.$executeRaw`lock table "offshoot"."AgentJob" in access exclusive mode`
      await pause(3_000)
    },
    { timeout: 10_000 },
  )
}

/** Away for all; then back for the API, whose reconciler looks at the workers, a while before it is for them. */
async function goAway(workersLaterMs = 0): Promise<void> {
  for (const way of [ways.api, ways.worker]) {
    way.silence()
    way.cut()
  }
  await pause(OUTAGE_MS)
  comeBack(ways.api)
  await pause(workersLaterMs)
  comeBack(ways.worker)
}

function comeBack(way: TcpProxy): void {
  way.heal()
  way.cut()
}

/**
 * Starts agents of three steps each, and calls `trouble` when the model is about to answer this step of each. Answers
 * what became of them, with the steps for which the model was called.
 */
async function agentsUnder(name: string, inStep: number, trouble: () => Promise<void>) {
  const { raw } = stage
  const begun = Promise.withResolvers<void>()
  const answer = (script: RawScript, step: number): RawScript => {
    return async (reply, request) => {
      if (step === inStep) await begun.promise
      await pause(ANSWER_AFTER_MS)
      await script(reply, request)
    }
  }
  const look = callsTool('checkAgent', { jobId: 'none' })
  const messages = Array.from({ length: AGENTS }, (_, at) => `${name} ${at}`)
  for (const message of messages) raw.answer(message, byRound(...[look, look, says('done')].map(answer)))
  const jobs = await Promise.all(messages.map((message) => spawnRoot(stage, 'bot', message)))
  await waitUntil(() => messages.every((message) => raw.requests(message).length > inStep), { what: 'all agents' })
  const over = trouble()
  begun.resolve()
  await over
  const ends = []
  for (const { id, inputMessage } of jobs) {
    const { state, result, steps } = await endOf(stage, id, 30_000)
    const lost = (await eventsOf(stage, id)).includes('worker-lost')
    ends.push({ state, result, steps, called: roundsOf(raw, inputMessage), lost })
  }
  return { ends, restarts: await stage.restarts() }
}

/** Every agent has completed, with these model calls, and no worker was declared lost. */
function allCompleted(called: number[]) {
  const end = { state: 'completed', result: 'done', steps: 3, called, lost: false }
  return { ends: Array.from({ length: AGENTS }, () => end), restarts: [] }
}

describe('trouble that is over before a worker gives its claims up repeats no model call:', () => {
  beforeAll(() => openStage(8_000))
  afterAll(closeStage)

  test('COST-3: all sessions of the fleet cut by Postgres, three times', async () => {
    expect(await agentsUnder('cut sessions', 0, cutSessions)).toEqual(allCompleted([0, 1, 2]))
  })

  test('COST-3: the table of jobs locked for 3 s', async () => {
    expect(await agentsUnder('locked table', 0, lockJobs)).toEqual(allCompleted([0, 1, 2]))
  })

  test('LOSS-1: a terminal update that Postgres refuses once', async () => {
    const { database } = stage.runtime
    await database.$executeRawUnsafe('create sequence "offshoot"."refusals"')
    await database.$executeRawUnsafe(`
      create function "offshoot"."refuse"() returns trigger language plpgsql as $$ begin
        if nextval('"offshoot"."refusals"') <= ${AGENTS} then raise exception 'not now'; end if;
        return new;
      end $$`)
    await database.$executeRawUnsafe(`
      create trigger "refuse" before update on "offshoot"."AgentJob" for each row
      when (new."state" = 'completed') execute function "offshoot"."refuse"()`)
    expect(await agentsUnder('refused end', 0, async () => undefined)).toEqual(allCompleted([0, 1, 2]))
    await database.$executeRawUnsafe('drop trigger "refuse" on "offshoot"."AgentJob"')
    const [row] = await database.$queryRaw<{ last_value: bigint }[]>`select last_value from "offshoot"."refusals"`
    expect(Number(row?.last_value)).toBe(2 * AGENTS)
  })

  test('LOSS-1, COST-3: Postgres gone for 5 s', async () => {
    expect(await agentsUnder('gone', 1, () => goAway())).toEqual(allCompleted([0, 1, 2]))
  })
})

describe('with Postgres gone for longer than a worker keeps its claims', () => {
  beforeAll(() => openStage(2_000))
  afterAll(closeStage)

  test('COST-3: no stored step is made again, and nobody is declared lost', async () => {
    const { ends, restarts } = await agentsUnder('gone for long', 1, () => goAway(2_000))
    expect(restarts).toEqual([])
    for (const end of ends) {
      expect(end).toMatchObject({ state: 'completed', result: 'done', steps: 3, lost: false })
      // The step that was under way is made again, unless its output could be stored after all.
      expect([
        [0, 1, 2],
        [0, 1, 1, 2],
      ]).toContainEqual(end.called)
    }
  })
})
