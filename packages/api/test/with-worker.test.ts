// The API with a real worker and a model that speaks OpenAI's protocol.
import { type MockModel, startMockModel } from '@offshoot/testing/mock-model'
import { startWorkerProcess, type TestProcess } from '@offshoot/testing/processes'
import { DefaultChatTransport, readUIMessageStream, type UIMessage } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ApiUnderTest, openApi, PLANNER } from './api-under-test.ts'

let model: MockModel
let api: ApiUnderTest
let worker: TestProcess
beforeAll(async () => {
  model = await startMockModel()
  api = await openApi({ OPENAI_BASE_URL: model.baseUrl })
  worker = await startWorkerProcess(api.stage.environment)
})
afterAll(async () => {
  await worker.stop()
  await api.close()
  await model.stop()
})

test('a sync spawn answers with what the sub-agent said', async () => {
  model.answer('what is six times seven', ['forty-two'])
  expect(
    await api.json('/v1/agents', { as: 'alice', body: { ...PLANNER, message: 'what is six times seven' } }),
  ).toMatchObject({
    status: 200,
    body: {
      state: 'completed',
      reason: 'completed',
      result: 'forty-two',
      steps: 1,
      messages: [{ role: 'user' }, { role: 'assistant' }],
    },
  })
})

test('a chat app’s transport sees the turn, and the same message afterwards', async () => {
  model.answer('delegate this', [
    { text: 'One moment.', calls: [{ name: 'spawnAgent', arguments: { ...PLANNER, message: 'the part' } }] },
    'All parts are there.',
  ])
  model.answer('the part', ['a part'])
  const { convoId } = (await api.json('/v1/convos', { as: 'alice', body: PLANNER })).body
  const transport = new DefaultChatTransport<UIMessage>({
    api: `${api.url}/v1/convos/${String(convoId)}/messages`,
    headers: { authorization: `Bearer ${api.keys.alice}` },
  })
  const stream = await transport.sendMessages({
    chatId: String(convoId),
    messages: [{ id: 'u1', role: 'user', parts: [{ type: 'text', text: 'delegate this' }] }],
    trigger: 'submit-message',
    messageId: undefined,
    abortSignal: undefined,
  })
  let seen: UIMessage | undefined
  for await (seen of readUIMessageStream({ stream }));
  const types = seen?.parts.map((part) => part.type)
  expect(types?.filter((type) => type !== 'reasoning')).toEqual([
    'step-start',
    'text',
    'tool-spawnAgent',
    'step-start',
    'text',
  ])
  expect(seen?.parts.at(-1)).toMatchObject({ text: 'All parts are there.' })
  const { messages } = (await api.json(`/v1/convos/${String(convoId)}/messages`, { as: 'alice' })).body as {
    messages: UIMessage[]
  }
  expect(messages.map((message) => message.role)).toEqual(['user', 'assistant'])
  expect(messages[1]?.parts.map((part) => part.type)).toEqual(types)
  expect(messages[1]?.parts.at(-1)).toEqual(seen?.parts.at(-1))
  const { jobs } = (await api.json('/v1/agents?live=false&limit=2', { as: 'alice' })).body as {
    jobs: { depth: number; bot: string }[]
  }
  expect(jobs).toMatchObject([{ depth: 1, bot: 'forge/planner' }, { depth: 0 }])
})
