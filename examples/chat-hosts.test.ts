import { spawn } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import { DefaultChatTransport, readUIMessageStream, type UIMessage } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { z } from 'zod'
import { type ExampleStage, openExampleStage, spawnCall } from './example-stage.ts'

let example: ExampleStage
beforeAll(async () => {
  example = await openExampleStage()
  example.mock.answer('Which bell is the best?', [{ calls: [spawnCall('Compare bells.')] }, 'Kling is the best bell.'])
  example.mock.answer('Compare bells.', [{ text: 'Kling is louder than Trill.', pace: { ttft: 20, tps: 20 } }])
})
afterAll(() => example.close())

const question: UIMessage = { id: 'm1', role: 'user', parts: [{ type: 'text', text: 'Which bell is the best?' }] }

/** Sends the question as `useChat` does; the messages are those that a page would show, one after the other. */
async function ask(fetchChat: typeof fetch, api: string): Promise<UIMessage[]> {
  const transport = new DefaultChatTransport({ api, fetch: fetchChat })
  const stream = await transport.sendMessages({
    chatId: 'chat-7',
    trigger: 'submit-message',
    messageId: undefined,
    messages: [question],
    abortSignal: undefined,
  })
  const seen: UIMessage[] = []
  for await (const message of readUIMessageStream({ stream })) seen.push(message)
  return seen
}

async function expectAnswer(seen: UIMessage[]) {
  const last = seen.at(-1)
  expect(last?.parts.findLast((part) => part.type === 'text')?.text).toBe('Kling is the best bell.')
  expect(last?.parts.find((part) => part.type === 'tool-spawnAgent')).toMatchObject({
    state: 'output-available',
    output: { state: 'completed', result: 'Kling is louder than Trill.' },
  })
  const job = await example.stage.runtime.database.agentJob.findFirst({ orderBy: { id: 'desc' } })
  expect(job).toMatchObject({ ownerId: 'alice', parentConvoId: 'chat-7', state: 'completed' })
}

const progressSchema = z.object({ message: z.custom<UIMessage>().nullish() })

/** The sub-agent's growing text, as the tool's preliminary outputs showed it. */
function growingTexts(seen: UIMessage[]): string[] {
  const texts = seen.flatMap((message) => {
    const part = message.parts.find((each) => each.type === 'tool-spawnAgent')
    const output = part !== undefined && 'output' in part ? part.output : undefined
    const { message: growing } = progressSchema.catch({}).parse(output)
    return growing?.parts.find((each) => each.type === 'text')?.text ?? []
  })
  return [...new Set(texts)]
}

test('the route of a Next.js app streams the answer, and the sub-agent in it as it grows', async () => {
  Object.assign(process.env, example.environment)
  const { POST } = await import('./next-route.ts')
  const { offshoot } = await import('./offshoot-client.ts')
  try {
    const seen = await ask((input, init) => POST(new Request(input, init)), 'http://host/api/chat')
    await expectAnswer(seen)
    expect(growingTexts(seen).length).toBeGreaterThan(0)
  } finally {
    await offshoot.close()
  }
})

test('the Express host does the same, and ends on SIGTERM', async () => {
  const host = spawn(process.execPath, [path.join(import.meta.dirname, 'express-host.ts')], {
    env: { ...process.env, ...example.environment, PORT: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  try {
    const [line] = await once(host.stdout.setEncoding('utf8'), 'data')
    const port = /port: (\d+)/.exec(String(line))?.[1]
    await expectAnswer(await ask(fetch, `http://127.0.0.1:${port}/api/chat`))
  } finally {
    host.kill('SIGTERM')
  }
  const [code] = await once(host, 'exit')
  expect(code).toBe(0)
})
