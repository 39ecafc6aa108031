// The SDK's callbacks decide nothing: they call a broken answer an end, and whatever breaks one an error. All of them are
// listened to here, and all of them throw.
import { registerTelemetry } from 'ai'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { endOf, eventsOf, runRoot, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { type RawModel, type RawReply, says, startRawModel } from '@offshoot/testing/raw-model'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage
let heard: string[] = []

function hears(name: string): () => never {
  return () => {
    heard.push(name)
    throw new Error(`the ${name} callback has a bug`)
  }
}

beforeAll(async () => {
  registerTelemetry({ onEnd: hears('end'), onError: hears('error'), onAbort: hears('abort') })
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    environment: { LOG_LEVEL: 'silent', MODEL_CHUNK_MS: '300', MODEL_STEP_MS: '1500' },
  })
  await stage.putBot('bot')
})

beforeEach(() => {
  heard = []
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

/** Says more and more. */
function tick(reply: RawReply): void {
  const timer = setInterval(() => reply.text('!'), 50)
  void reply.closed.then(() => clearInterval(timer))
}

/** What the model does after half an answer; what the SDK then calls; what the job must become. */
const cases: [string, (reply: RawReply) => void, string, string][] = [
  ['a body without a finish, which is told as an end,', (reply) => reply.end(), 'end', 'upstream_disconnect'],
  ['a limit of the SDK', tick, 'error', 'timeout_step'],
  ['silence', () => undefined, 'error', 'timeout_chunk'],
  [
    'an error event',
    (reply) => reply.event({ type: 'error', sequence_number: 9, code: 'server_error', message: 'no', param: null }),
    'error',
    'model_unavailable',
  ],
  ['a reset', (reply) => reply.reset(), 'error', 'upstream_disconnect'],
]

test.each(cases)('STATE-13: %s ends the job by its own rules, once', async (what, cut, said, reason) => {
  const arrived = Promise.withResolvers<void>()
  raw.answer(what, async (reply) => {
    reply.text('Half an ans')
    await arrived.promise
    cut(reply)
  })
  const { id } = await spawnRoot(stage, 'bot', what)
  await untilLiveText(stage, id, 'Half an ans')
  arrived.resolve()
  expect(await endOf(stage, id)).toMatchObject({
    state: 'failed',
    result: expect.stringMatching(/^Half an ans!*$/),
    reason,
    partial: true,
  })
  await expect.poll(() => heard).toEqual([said])
  expect(await eventsOf(stage, id)).toEqual(['spawned', 'ended'])
})

test('STATE-13: a good end is one although its callback throws', async () => {
  raw.answer('be good', says('good'))
  expect(await runRoot(stage, 'bot', 'be good')).toMatchObject({ state: 'completed', result: 'good' })
  await expect.poll(() => heard).toEqual(['end'])
})
