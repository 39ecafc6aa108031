// A host: its own streamText with the sub-agent tools. It needs a worker, and DATABASE_URL, REDIS_URL, OPENAI_API_KEY (or
// OPENAI_BASE_URL too, for another model) in its environment: node examples/host-script.ts "<what to ask>"
import { openai } from '@ai-sdk/openai'
import { createOffshoot } from '@offshoot/shared'
import { isStepCount, streamText } from 'ai'

const [question = 'Ask forge/researcher for three facts about bicycle bells, and tell me the best one.'] =
  process.argv.slice(2)

const offshoot = await createOffshoot()
const caller = {
  userId: 'alice',
  parentConvoId: 'chat-1',
  parentConvoOwnerId: 'alice',
  parentConvoSpaceId: null,
  spawnDepth: 0,
}

const answer = await offshoot.runWithSpawnContext(caller, () => {
  const result = streamText({
    model: openai('gpt-5-mini'),
    instructions: 'You may let sub-agents work for you. The bots are in the group "forge": researcher, writer.',
    prompt: question,
    tools: offshoot.tools(),
    stopWhen: isStepCount(10),
  })
  return result.text
})
console.log(answer)
await offshoot.close()
