import { createOffshoot, type Offshoot } from '@offshoot/shared'
import { type RawModel, type RawScript, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ExampleStage, openExampleStage, researcher } from './example-stage.ts'
import { writeGuide } from './mixed-delegation.ts'

const MODELS = { question: 'Which bicycle bells are sold?', answer: 'Kling and Trill are sold.' }
const LAW = { question: 'How loud must a bicycle bell be?', answer: 'No law says how loud.' }
const RIDERS = { question: 'What do riders complain of?', answer: 'Riders complain of rust.' }

let raw: RawModel
let example: ExampleStage
let offshoot: Offshoot
beforeAll(async () => {
  raw = await startRawModel()
  example = await openExampleStage({ OPENAI_BASE_URL: raw.baseUrl })
  await example.stage.putBot('editor')
  offshoot = await createOffshoot({ environment: example.environment })
})
afterAll(async () => {
  await offshoot.close()
  await example.close()
  await raw.stop()
})

/** A researcher that answers when the test says so. */
function answersLater({ question, answer }: typeof MODELS): () => void {
  const found = Promise.withResolvers<void>()
  raw.answer(question, async (reply) => {
    await found.promise
    reply.text(answer)
    reply.finish()
  })
  return found.resolve
}

const delegates: RawScript = (reply) => {
  const heard = { mode: 'async', notifyParent: true }
  reply.call('spawnAgent', { bot: researcher, message: MODELS.question, mode: 'sync' }, 'call_models')
  reply.call('spawnAgent', { bot: researcher, message: LAW.question, ...heard }, 'call_law')
  reply.call('spawnAgent', { bot: researcher, message: RIDERS.question, ...heard }, 'call_riders')
  reply.finish()
}

/** The guide as far as the editor has read of it: what no sub-agent has told it, it cannot say. */
const writesWhatItRead: RawScript = (reply, { body }) => {
  const prompt = JSON.stringify(body)
  const known = [MODELS, LAW, RIDERS].map(({ answer }) => answer).filter((answer) => prompt.includes(answer))
  reply.text(known.join(' '))
  reply.finish()
}

test('a bot waits for one sub-agent, hears of two others later, and ends with what all three found', async () => {
  const [findModels, findLaw, findComplaints] = [MODELS, LAW, RIDERS].map(answersLater)
  raw.answer('Write a guide to bicycle bells.', delegates, writesWhatItRead)
  raw.answer(/^\[outcome of your sub-agent forge\/researcher/, writesWhatItRead)
  const { agentJob, agentToolCall } = example.stage.runtime.database
  const readEditor = () => agentJob.findFirstOrThrow({ where: { botLabel: 'forge/editor' } })
  const untilWaiting = (waitingOn: 'children' | 'inbox', steps: number) =>
    waitUntil(async () => {
      const job = await readEditor()
      // It has no claim: it holds nothing while it waits.
      return job.waitingOn === waitingOn && job.steps === steps && job.claimToken === null
    })

  const caller = {
    userId: 'alice',
    parentConvoId: 'chat-1',
    parentConvoOwnerId: 'alice',
    parentConvoSpaceId: null,
    spawnDepth: 0,
  }
  const guide = writeGuide(offshoot, caller, 'bicycle bells')
  await waitUntil(() => [MODELS, LAW, RIDERS].every(({ question }) => raw.requests(question).length === 1))
  await untilWaiting('children', 1)
  findModels?.()
  await untilWaiting('inbox', 2)
  findLaw?.()
  await untilWaiting('inbox', 3)
  findComplaints?.()
  expect(await guide).toBe(`${MODELS.answer} ${LAW.answer} ${RIDERS.answer}`)

  const { id, steps } = await readEditor()
  expect(steps).toBe(4)
  expect(raw.requests()).toHaveLength(4 + 3)
  const calls = await agentToolCall.findMany({ where: { jobId: id } })
  expect(calls.map((call) => call.toolName)).toEqual(['spawnAgent', 'spawnAgent', 'spawnAgent'])
  const [first] = raw.requests('Write a guide to bicycle bells.')
  expect(JSON.stringify(first?.body)).toContain('mode \\"async\\" with notifyParent: true')
})
