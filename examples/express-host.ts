// The same chat route in Express: PORT=4000 node examples/express-host.ts
import { openai } from '@ai-sdk/openai'
import {
  convertToModelMessages,
  isStepCount,
  pipeUIMessageStreamToResponse,
  streamText,
  toUIMessageStream,
  type UIMessage,
} from 'ai'
import express from 'express'
import { z } from 'zod'
import { offshoot } from './offshoot-client.ts'

const chatBodySchema = z.object({ id: z.string(), messages: z.array(z.custom<UIMessage>()) })
const app = express()

app.post('/api/chat', express.json({ limit: '1mb' }), async (request, response) => {
  const { id, messages } = chatBodySchema.parse(request.body)
  const userId = 'alice' // whoever is signed in: from the session, never from the body
  const tools = offshoot.tools()
  const history = await convertToModelMessages(messages, { tools, ignoreIncompleteToolCalls: true })
  const gone = new AbortController()
  response.once('close', () => gone.abort())
  const caller = {
    userId,
    parentConvoId: id,
    parentConvoOwnerId: userId,
    parentConvoSpaceId: null,
    spawnDepth: 0,
  }
  await offshoot.runWithSpawnContext(caller, () => {
    const result = streamText({
      model: openai('gpt-5-mini'),
      instructions: 'You may let sub-agents work for you. The bots are in the group "forge": researcher, writer.',
      messages: history,
      tools,
      stopWhen: isStepCount(10),
      abortSignal: gone.signal,
    })
    return pipeUIMessageStreamToResponse({ response, stream: toUIMessageStream({ stream: result.stream, tools }) })
  })
})

const server = app.listen(Number(process.env['PORT'] ?? 4000), '127.0.0.1', () =>
  console.log('ready', server.address()),
)
process.once('SIGTERM', () => server.close(() => void offshoot.close()))
