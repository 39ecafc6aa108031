// A Postgres that refuses or breaks off: what was paid for is not thrown away, and nothing is paid twice.
import { jsonSchema } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { answerOf, runRoot } from '@offshoot/testing/agents'
import { callsTool, type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const CHUNK_MS = '500'

let raw: RawModel
let stage: WorkerStage
/** What the tool `act` does while it runs, before it answers. */
let duringTool: () => Promise<void> = async () => undefined

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    environment: { LOG_LEVEL: 'silent', MODEL_CHUNK_MS: CHUNK_MS },
    extensions: {
      tools: [
        {
          id: 'act',
          group: 'test',
          userSelect: true,
          tool: {
            inputSchema: jsonSchema<object>({ type: 'object' }),
            async execute() {
              await duringTool()
              return 'acted'
            },
          },
        },
      ],
    },
  })
  await stage.putBot('bot', { toolNames: ['act'] })
  // Raises for the first writes that it sees after a reset: a sequence counts on although the transaction ends.
  await stage.runtime.database.$executeRawUnsafe('create sequence "offshoot"."hiccups"')
  await stage.runtime.database.$executeRawUnsafe(`
    create function "offshoot"."hiccup"() returns trigger language plpgsql as $$ begin
      if nextval('"offshoot"."hiccups"') <= tg_argv[0]::int then raise exception 'no' using errcode = tg_argv[1]; end if;
      return new;
    end $$`)
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const STARTING_UP = { times: 3, code: '57P03' }

/** Makes the first inserts or updates of a table fail. Answers how many were tried in all. */
async function withHiccups(
  event: string,
  table: string,
  when: string,
  work: () => Promise<void>,
  { times, code } = STARTING_UP,
): Promise<number> {
  const { database } = stage.runtime
  await database.$executeRawUnsafe(`alter sequence "offshoot"."hiccups" restart`)
  await database.$executeRawUnsafe(
    `create trigger "hiccup" before ${event} on "offshoot"."${table}" for each row when (${when}) execute function "offshoot"."hiccup"(${times}, '${code}')`,
  )
  await work()
  await database.$executeRawUnsafe(`drop trigger "hiccup" on "offshoot"."${table}"`)
  const [row] = await database.$queryRaw<{ last_value: bigint }[]>`select last_value from "offshoot"."hiccups"`
  return Number(row?.last_value)
}

test('LOSS-1: a model output whose write fails is written again, and the model is not called again', async () => {
  raw.answer('store me', callsTool('act', {}), says('stored'))
  const tried = await withHiccups('insert', 'AgentStep', 'true', async () => {
    expect(await runRoot(stage, 'bot', 'store me')).toMatchObject({
      state: 'completed',
      result: 'stored',
      steps: 2,
      attempt: 1,
    })
  })
  expect(tried).toBe(5)
  expect(raw.requests('store me')).toHaveLength(2)
})

test('COST-3: a tool result whose write fails is written again, and the tool does not run again', async () => {
  let ran = 0
  duringTool = async () => void (ran += 1)
  raw.answer('act once', callsTool('act', {}), says('stored'))
  const tried = await withHiccups('update', 'AgentToolCall', 'true', async () => {
    expect(await runRoot(stage, 'bot', 'act once')).toMatchObject({ state: 'completed', result: 'stored' })
  })
  expect(tried).toBe(4)
  expect(ran).toBe(1)
})

test('LOSS-1: a terminal write that fails is tried again without another model call', async () => {
  raw.answer('end me', says('the end'))
  const tried = await withHiccups('insert', 'AiMessage', `new."role" = 'assistant'`, async () => {
    const job = await runRoot(stage, 'bot', 'end me')
    expect(job).toMatchObject({ state: 'completed', result: 'the end', attempt: 1 })
    expect(await answerOf(stage, job.id)).toMatchObject([{ type: 'step-start' }, { type: 'text', text: 'the end' }])
  })
  expect(tried).toBe(4)
  expect(raw.requests('end me')).toHaveLength(1)
})

test('LOSS-1: an end that Postgres refuses for no known reason is written again; one that it always refuses is an error', async () => {
  const refusal = { times: 2, code: 'P0001' }
  raw.answer('end me somehow', says('the end'))
  const ends = `new."state" in ('completed', 'failed')`
  const tried = await withHiccups(
    'update',
    'AgentJob',
    ends,
    async () => {
      const job = await runRoot(stage, 'bot', 'end me somehow')
      expect(job).toMatchObject({ state: 'completed', result: 'the end', attempt: 1 })
    },
    refusal,
  )
  expect(tried).toBe(3)
  expect(raw.requests('end me somehow')).toHaveLength(1)
  await withHiccups(
    'update',
    'AgentJob',
    ends,
    async () => {
      const job = await runRoot(stage, 'bot', 'end me somehow')
      expect(job).toMatchObject({ state: 'failed', reason: 'internal', attempt: 1 })
    },
    // Three tries, each together with others and then alone.
    { ...refusal, times: 6 },
  )
  expect(raw.requests('end me somehow')).toHaveLength(2)
})

test('a session that Postgres cuts while the inbox is read fails no job and repeats no call', async () => {
  const { database } = stage.runtime
  const released = Promise.withResolvers<void>()
  let locking: Promise<unknown> | undefined
  duringTool = async () => {
    const locked = Promise.withResolvers<void>()
    locking = database.$transaction(
      async (tx) => {
        await tx.$executeRawUnsafe('lock table "offshoot"."InboxItem" in access exclusive mode')
        locked.resolve()
        await released.promise
      },
      { timeout: 10_000 },
    )
    await locked.promise
  }
  raw.answer('read my inbox', callsTool('act', {}), says('read'))
  const running = runRoot(stage, 'bot', 'read my inbox')
  await waitUntil(async () => {
    const cut = await database.$queryRaw<unknown[]>`
      select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock' and query ilike '%InboxItem%'`
    return cut.length > 0
  })
  released.resolve()
  await locking
  expect(await running).toMatchObject({ state: 'completed', result: 'read', steps: 2, attempt: 1 })
  expect(raw.requests('read my inbox')).toHaveLength(2)
})

test('LOSS-1: a Postgres that takes an output long after the model has said it makes no silent model of it', async () => {
  raw.answer('be patient', callsTool('act', {}), says('patient'))
  const { database } = stage.runtime
  const isWaitedFor = async () => {
    const rows = await database.$queryRaw<{ n: bigint }[]>`
      select count(*) as n from pg_locks where not granted and relation = '"offshoot"."AgentStep"'::regclass`
    return rows[0]?.n === 1n
  }
  let job: Promise<unknown> | undefined
  await database.$transaction(
    async (tx) => {
      await tx.$executeRawUnsafe('lock table "offshoot"."AgentStep" in exclusive mode')
      job = runRoot(stage, 'bot', 'be patient')
      await waitUntil(isWaitedFor)
      const before = performance.now()
      await waitUntil(() => performance.now() - before > 2 * Number(CHUNK_MS))
    },
    { timeout: 10_000 },
  )
  expect(await job).toMatchObject({ state: 'completed', result: 'patient', steps: 2, attempt: 1 })
  expect(raw.requests('be patient')).toHaveLength(2)
})
