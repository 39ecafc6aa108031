// What viewers and the record have of a step that does not come to its end in a tool, and of calls that have the same id.
import { jsonSchema } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { abort, answerOf, endOf, runRoot, spawnRoot } from '@offshoot/testing/agents'
import { callsTool, type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage
let started = 0

const inputSchema = jsonSchema<{ text: string }>({ type: 'object' })

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    environment: { MODEL_STEP_MS: '1500' },
    extensions: {
      tools: [
        {
          id: 'hang',
          group: 'test',
          userSelect: true,
          tool: {
            inputSchema,
            async execute() {
              started += 1
              return new Promise(() => undefined)
            },
          },
        },
        { id: 'echo', group: 'test', userSelect: true, tool: { inputSchema, execute: async ({ text }) => text } },
      ],
    },
  })
  await stage.putBot('bot', { toolNames: ['hang', 'echo'] })
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

async function framesOf(jobId: string): Promise<string[]> {
  return (await stage.runtime.liveStreams.read(jobId, 0)).flatMap(({ chunks }) => chunks.map(({ type }) => type))
}

test('STATE-2: of a step that is aborted in a tool viewers see neither an error of the tool nor an end', async () => {
  raw.answer('hang', callsTool('hang', { text: '' }), says('never'))
  const { id } = await spawnRoot(stage, 'bot', 'hang')
  await waitUntil(() => started === 1)
  await abort(stage, id)
  expect(await endOf(stage, id)).toMatchObject({ state: 'aborted' })
  const frames = await framesOf(id)
  expect(frames).toContain('tool-input-available')
  expect(frames.filter((type) => type === 'finish-step' || type.startsWith('tool-output'))).toEqual([])
})

test('STATE-3: a step whose time is over in a tool has not ended for viewers', async () => {
  raw.answer('hang on', callsTool('hang', { text: '' }), says('never'))
  const { id } = await spawnRoot(stage, 'bot', 'hang on')
  expect(await endOf(stage, id)).toMatchObject({ state: 'failed', reason: 'timeout_step' })
  expect(await framesOf(id)).not.toContain('finish-step')
})

test('STATE-10: calls of one step that have the same id are run, kept and sent back as two', async () => {
  raw.answer(
    'say twice',
    (reply) => {
      reply.call('echo', { text: 'one' }, 'call_x')
      reply.call('echo', { text: 'two' }, 'call_x')
      reply.finish()
    },
    says('said'),
  )
  const { id } = await runRoot(stage, 'bot', 'say twice')
  expect((await answerOf(stage, id)).filter(({ type }) => type === 'tool-echo')).toMatchObject([
    { input: { text: 'one' }, output: 'one' },
    { input: { text: 'two' }, output: 'two' },
  ])
  const sent = raw.requests('say twice')[1]?.body['input']
  const items = Array.isArray(sent) ? sent.filter(({ type }) => String(type).startsWith('function_call')) : []
  expect(items).toMatchObject([
    { type: 'function_call', call_id: 'call_x', arguments: '{"text":"one"}' },
    { type: 'function_call', call_id: 'call_x_2', arguments: '{"text":"two"}' },
    { type: 'function_call_output', call_id: 'call_x', output: 'one' },
    { type: 'function_call_output', call_id: 'call_x_2', output: 'two' },
  ])
})
