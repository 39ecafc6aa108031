import { createApiKey, ensureUser } from '@offshoot/shared/db/users'
import { startApiProcess, type TestProcess } from '@offshoot/testing/processes'
import { readUIMessageStream, type UIMessage } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { z } from 'zod'
import { type ExampleStage, openExampleStage, researcher } from './example-stage.ts'
import * as client from './http-client.ts'

let example: ExampleStage
let server: TestProcess
let api: client.Api
beforeAll(async () => {
  example = await openExampleStage()
  server = await startApiProcess(example.environment)
  await ensureUser(example.stage.runtime.database, 'alice')
  api = { url: server.url, key: await createApiKey(example.stage.runtime.database, 'alice') }
  await example.stage.putBot('planner')
  example.mock.answer('How loud is Kling?', [{ text: '80 decibels, at arm’s length.', pace: { ttft: 20, tps: 40 } }])
  example.mock.answer('Look into order 17.', ['It is on its way.'])
})
afterAll(async () => {
  await server.stop()
  await example.close()
})

function textOf(message: UIMessage | undefined) {
  return message?.parts.findLast((part) => part.type === 'text')?.text
}

test('a spawn over HTTP brings the answer', async () => {
  expect(await client.spawnAndWait(api, 'How loud is Kling?')).toBe('80 decibels, at arm’s length.')
})

test('a refusal is a problem with a stable code', async () => {
  await expect(client.spawnAndWait(api, '')).rejects.toThrow(/^invalid_request: message must be 1 to 100000 characters/)
  await expect(client.spawnAndWait({ ...api, key: 'offshoot_wrong' }, 'Hello')).rejects.toThrow(/^unauthorized: /)
})

test('a repeated request starts nothing new, and the job can be watched to its end', async () => {
  const jobId = await client.spawnOnce(api, '17')
  expect(await client.spawnOnce(api, '17')).toBe(jobId)
  let last: UIMessage | undefined
  await client.watch(api, jobId, (message) => (last = message))
  expect(textOf(last)).toBe('It is on its way.')
  expect(example.mock.calls('Look into order 17.')).toBe(1)
})

test('a convo is a chat for useChat: the answer streams, and a page that comes back finds it', async () => {
  example.mock.answer('Plan the launch.', [
    { calls: [{ name: 'spawnAgent', arguments: { bot: researcher, message: 'How loud is Kling?' } }] },
    { text: 'Launch it loudly, on a Sunday, in a park.', pace: { ttft: 100, tps: 5 } },
  ])
  const convoId = await client.beginConvo(api)
  const transport = client.convoTransport(api)
  expect(await transport.reconnectToStream({ chatId: convoId })).toBeNull()

  const stream = await transport.sendMessages({
    chatId: convoId,
    trigger: 'submit-message',
    messageId: undefined,
    messages: [{ id: 'm1', role: 'user', parts: [{ type: 'text', text: 'Plan the launch.' }] }],
    abortSignal: undefined,
  })
  const page = stream.getReader()
  await page.read() // the answer has begun
  await page.cancel() // the page is closed

  const resumed = await transport.reconnectToStream({ chatId: convoId })
  let last: UIMessage | undefined
  if (resumed !== null) for await (const message of readUIMessageStream({ stream: resumed })) last = message
  expect(textOf(last)).toBe('Launch it loudly, on a Sunday, in a park.')

  const response = await fetch(`${api.url}/v1/convos/${convoId}/messages`, {
    headers: { authorization: `Bearer ${api.key}` },
  })
  const { messages } = z.object({ messages: z.array(z.custom<UIMessage>()) }).parse(await response.json())
  expect(messages.map((message) => [message.role, textOf(message)])).toEqual([
    ['user', 'Plan the launch.'],
    ['assistant', 'Launch it loudly, on a Sunday, in a park.'],
  ])
})
