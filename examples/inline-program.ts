// A program that runs its sub-agents itself: no worker, no Redis. It needs DATABASE_URL and OPENAI_API_KEY (or
// OPENAI_BASE_URL too, for another model) in its environment: node examples/inline-program.ts "<what to ask>"
import { createOffshoot } from '@offshoot/shared'
import { createInlineRunner } from '@offshoot/worker/inline-runner'

const [question = 'Name three facts about bicycle bells.'] = process.argv.slice(2)

const offshoot = await createOffshoot({ inlineRunner: createInlineRunner, extensions: { runner: 'inline' } })
const caller = {
  userId: 'alice',
  parentConvoId: 'chat-1',
  parentConvoOwnerId: 'alice',
  parentConvoSpaceId: null,
  spawnDepth: 0,
}
// What still runs when the program is told to end ends after its step, with what it has.
process.once('SIGTERM', () => void offshoot.close())

const bot = { botGroup: 'forge', botHandle: 'researcher' }
const outcome = await offshoot.run(caller, { bot, message: question })
console.log(outcome.state === 'completed' ? outcome.result : outcome)
await offshoot.close()
