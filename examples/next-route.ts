// A chat route for useChat, as in app/api/chat/route.ts of a Next.js app. It fits wherever a handler takes a Request and
// answers a Response.
import { openai } from '@ai-sdk/openai'
import {
  convertToModelMessages,
  createUIMessageStreamResponse,
  isStepCount,
  streamText,
  toUIMessageStream,
  type UIMessage,
} from 'ai'
import { z } from 'zod'
import { offshoot } from './offshoot-client.ts'

const chatBodySchema = z.object({ id: z.string(), messages: z.array(z.custom<UIMessage>()) })

export async function POST(request: Request): Promise<Response> {
  const { id, messages } = chatBodySchema.parse(await request.json())
  const userId = 'alice' // whoever is signed in: from the session, never from the body
  const tools = offshoot.tools()
  const history = await convertToModelMessages(messages, { tools, ignoreIncompleteToolCalls: true })
  const caller = {
    userId,
    parentConvoId: id,
    parentConvoOwnerId: userId,
    parentConvoSpaceId: null,
    spawnDepth: 0,
  }
  return offshoot.runWithSpawnContext(caller, () => {
    const result = streamText({
      model: openai('gpt-5-mini'),
      instructions: 'You may let sub-agents work for you. The bots are in the group "forge": researcher, writer.',
      messages: history,
      tools,
      stopWhen: isStepCount(10),
      abortSignal: request.signal,
    })
    return createUIMessageStreamResponse({ stream: toUIMessageStream({ stream: result.stream, tools }) })
  })
}
