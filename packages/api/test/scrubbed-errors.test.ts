// SEC-6: what fails is told in our own words. Everything that a user or the dashboard can read is gathered, and holds
// neither a key, nor a connection string, nor a system prompt, nor what a provider answered.
import path from 'node:path'
import { endOf } from '@offshoot/testing/agents'
import { type InngestStub, startInngestStub } from '@offshoot/testing/inngest-stub'
import { startWorkerProcess, type TestProcess } from '@offshoot/testing/processes'
import { callsTool, type RawModel, type RawScript, says, startRawModel } from '@offshoot/testing/raw-model'
import { redisTexts } from '@offshoot/testing/redis-texts'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import leaky from '../../shared/test/leaky.offshoot.ts'
import { type ApiUnderTest, openApi } from './api-under-test.ts'

const KEY = 'sk-proj-OfTheProvider0123456789'
const PARTNER_TOKEN = 'partner-token-0123456789'
const SHOP_DATABASE_URL = 'postgresql://shop:shop-password-1@db.internal:5432/shop'
const PROXY_URL = 'http://proxy:proxy-password-1@127.0.0.1:9/v1'
const SYSTEM_PROMPT = 'The secret of the house is porridge.'
const RAW_BODY = 'what the provider says of itself'
const SECRETS = [KEY, PARTNER_TOKEN, 'shop-password-1', 'proxy-password-1', 'porridge', RAW_BODY]

let raw: RawModel
let inngest: InngestStub
let api: ApiUnderTest
let worker: TestProcess
beforeAll(async () => {
  raw = await startRawModel()
  inngest = await startInngestStub()
  const environment = {
    OPENAI_BASE_URL: raw.baseUrl,
    OPENAI_API_KEY: KEY,
    INNGEST_DEV: 'true',
    INNGEST_BASE_URL: inngest.url,
    BULL_BOARD_USER: 'ops',
    BULL_BOARD_PASSWORD: 'ops-password-1',
    MODEL_CHUNK_MS: '300',
  }
  api = await openApi(environment, { extensions: leaky })
  const toolNames = ['queryShop', 'callPartner']
  await api.stage.putBot('planner', { systemPrompt: SYSTEM_PROMPT, toolNames })
  await api.stage.putBot('proxied', { systemPrompt: SYSTEM_PROMPT, integration: 'proxied', toolNames })
  await api.stage.putBot('broken', { systemPrompt: SYSTEM_PROMPT, integration: 'broken', toolNames })
  worker = await startWorkerProcess({
    ...api.stage.environment,
    OFFSHOOT_CONFIG: path.resolve(import.meta.dirname, '../../shared/test/leaky.offshoot.ts'),
    SHOP_DATABASE_URL,
    PARTNER_TOKEN,
    PROXY_URL,
  })
})
afterAll(async () => {
  await worker.stop()
  await api.close()
  await raw.stop()
  await inngest.stop()
})

const message = `${RAW_BODY}: key ${KEY}, instructions ${SYSTEM_PROMPT}`
const refuses =
  (status: number): RawScript =>
  (reply) =>
    // A Retry-After beyond the deadline is not waited for.
    reply.status(status, { message, code: RAW_BODY }, { 'x-request-id': RAW_BODY, 'retry-after': '86400' })

const FAILURES: [name: string, bot: string, scripts: RawScript[], end: object][] = [
  ['401', 'planner', [refuses(401)], { state: 'failed', reason: 'model_auth' }],
  ['400', 'planner', [refuses(400)], { state: 'failed', reason: 'model_refused' }],
  ['503', 'planner', [refuses(503)], { state: 'failed', reason: 'model_unavailable' }],
  [
    'an error in the stream',
    'planner',
    [
      (reply) => {
        reply.text('Well, ')
        reply.event({ type: 'error', error: { type: 'server_error', code: RAW_BODY, message }, sequence_number: 1 })
      },
    ],
    { state: 'failed', partial: true },
  ],
  [
    'an answer that cannot be read',
    'planner',
    [
      (reply) => {
        reply.event({ type: 'response.output_item.added', item: message })
        reply.end()
      },
    ],
    { state: 'failed' },
  ],
  ['silence in the middle', 'planner', [(reply) => reply.text('Well, ')], { state: 'failed', reason: 'timeout_chunk' }],
  ['an address with a login', 'proxied', [], { state: 'failed' }],
  ['a provider that cannot be made', 'broken', [], { state: 'failed', reason: 'internal' }],
  ['a tool', 'planner', [callsTool('queryShop', {}), says('done')], { state: 'completed' }],
  ['a tool that streams', 'planner', [callsTool('callPartner', {}), says('done')], { state: 'completed' }],
]

test.each(FAILURES)('SEC-6: a job that fails with %s tells nothing of it', async (name, bot, scripts, end) => {
  const question = `try ${name}`
  raw.answer(question, ...scripts)
  const jobId = await api.spawn('alice', {
    bot: { botGroup: 'forge', botHandle: bot },
    message: question,
    completionEvent: { name: 'over' },
    ...(bot === 'planner' ? {} : { tags: { bot } }),
  })
  const job = await endOf(api.stage, jobId, 40_000)
  expect(job).toMatchObject(end)
  await waitUntil(() => inngest.received.some(({ data }) => data['jobId'] === jobId))
  const texts = await everythingThatIsRead(jobId)
  for (const [where, text] of Object.entries(texts))
    for (const secret of SECRETS) expect(text, `${where} holds "${secret}"`).not.toContain(secret)
  // It is there at all, where it should be.
  expect(texts['check']).toContain(question)
  expect(Object.values(texts).filter((text) => text.length < 3)).toEqual([])
})

async function everythingThatIsRead(jobId: string): Promise<Record<string, string>> {
  const { database, liveStreams } = api.stage.runtime
  const own = async (what: string) => (await api.call(`/v1/agents/${jobId}${what}`, { as: 'alice' })).text()
  const basic = `Basic ${Buffer.from('ops:ops-password-1').toString('base64')}`
  const board = await api.call('/admin/queues/api/queues?activeQueue=agents-default&jobsPerPage=100', {
    headers: { authorization: basic },
  })
  const job = await database.agentJob.findUniqueOrThrow({ where: { id: jobId } })
  const { state, reason, result, error, completionEventData } = job
  const messages = await database.aiMessage.findMany({ where: { convoId: job.convoId } })
  const events = await database.agentEvent.findMany({ where: { jobId } })
  return {
    check: await own('?includePartial=true'),
    tree: await own('/tree'),
    steps: await own('/steps'),
    events: await own('/events'),
    stream: await own('/stream'),
    list: await (await api.call('/v1/agents', { as: 'alice' })).text(),
    messages: await (await api.call(`/v1/convos/${job.convoId}/messages`, { as: 'alice' })).text(),
    row: JSON.stringify({ state, reason, result, error, completionEventData }),
    'message rows': JSON.stringify(messages, withoutBigInt),
    'event rows': JSON.stringify(events, withoutBigInt),
    'completion event': JSON.stringify(inngest.received.filter(({ data }) => data['jobId'] === jobId)),
    'live stream': JSON.stringify(await liveStreams.read(jobId, 0)),
    dashboard: await board.text(),
    Redis: (await redisTexts(api.stage)).join('\n'),
  }
}

const withoutBigInt = (_: string, value: unknown) => (typeof value === 'bigint' ? String(value) : value)
