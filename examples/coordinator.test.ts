import { createOffshoot, type Offshoot } from '@offshoot/shared'
import type { SpawnContext } from '@offshoot/shared/spawn-context'
import { endOf, readJob, untilLiveText } from '@offshoot/testing/agents'
import { type RawModel, type RawRequest, type RawScript, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { type Change, coordinate, planParty } from './coordinator.ts'
import { type ExampleStage, openExampleStage, researcher } from './example-stage.ts'

const PLAN = { hall: 'Find a hall.', food: 'Find a caterer.', band: 'Find a band.' }
const VEGAN = 'The hall is vegan: no meat, no cheese.'
const MUSIC = 'Make a playlist.'

let raw: RawModel
let example: ExampleStage
let offshoot: Offshoot
beforeAll(async () => {
  raw = await startRawModel()
  example = await openExampleStage({ OPENAI_BASE_URL: raw.baseUrl })
  await example.stage.putBot('coordinator', { toolNames: ['spawnAgent', 'messageAgent', 'abortAgent', 'listAgents'] })
  offshoot = await createOffshoot({ environment: example.environment })
})
afterAll(async () => {
  await offshoot.close()
  await example.close()
  await raw.stop()
})

/** Let the researchers of hall and food end their first call. */
let foundHall: () => void
let foundFood: () => void
beforeEach(() => {
  const [hall, food] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  foundHall = hall.resolve
  foundFood = food.resolve
  raw.answer(PLAN.hall, saysUntil('A vegan hall without a stage.', hall.promise))
  raw.answer(PLAN.food, saysUntil('There is a steak house.', food.promise))
  raw.answer(PLAN.band, saysUntil('Asking around.', new Promise(() => undefined)))
  raw.answer(VEGAN, says('There is a vegan caterer.'))
  raw.answer(MUSIC, says('Forty songs.'))
})

function saysUntil(text: string, end: Promise<void>): RawScript {
  return async (reply) => {
    reply.text(text)
    await end
    reply.finish()
  }
}

function callerIn(chatId: string): SpawnContext {
  return {
    userId: 'alice',
    parentConvoId: chatId,
    parentConvoOwnerId: 'alice',
    parentConvoSpaceId: null,
    spawnDepth: 0,
  }
}

/** The job that works on this message. */
function runningJob(inputMessage: string) {
  const { agentJob } = example.stage.runtime.database
  return waitUntil(() => agentJob.findFirst({ where: { inputMessage, state: 'running' } }), { what: inputMessage })
}

/** All three are in the middle of their first call. */
async function untilAllWork() {
  const [hall, food, band] = await Promise.all(Object.values(PLAN).map(runningJob))
  if (hall === undefined || food === undefined || band === undefined) throw new Error('three questions, three jobs')
  await untilLiveText(example.stage, hall.id, 'A vegan hall without a stage.')
  await untilLiveText(example.stage, food.id, 'There is a steak house.')
  await untilLiveText(example.stage, band.id, 'Asking around.')
  return { hall, food, band }
}

function messageTo(jobId: string) {
  const { inboxItem } = example.stage.runtime.database
  return waitUntil(() => inboxItem.findFirst({ where: { jobId, kind: 'steer' } }), { what: 'the message' })
}

/** The one of the food read the message at its next call, after what it had said; the call of the band was cut. */
async function expectChanged(foodId: string) {
  const body = JSON.stringify(raw.requests(VEGAN).at(-1)?.body)
  expect(body).toMatch(/Find a caterer\..*There is a steak house\..*The hall is vegan/)
  expect(await messageTo(foodId)).toMatchObject({ consumedAtStep: 1 })
  await waitUntil(() => raw.requests(PLAN.band).at(-1)?.closedByPeerAt, { what: 'the end of the call of the band' })
}

test('a program steers one researcher, ends another and starts a new one, as the first finding says', async () => {
  const heard: string[] = []
  const changes: Record<string, Change> = {
    hall: { tell: { food: VEGAN }, drop: ['band'], ask: { music: MUSIC } },
  }
  const coordinated = coordinate(offshoot, callerIn('chat-1'), PLAN, (topic, finding) => {
    heard.push(`${topic}: ${finding}`)
    return changes[topic] ?? {}
  })
  const { food, band } = await untilAllWork()
  expect(heard).toEqual([])
  foundHall()
  await messageTo(food.id)
  foundFood()

  expect(await coordinated).toMatchObject({
    hall: { state: 'completed', result: 'A vegan hall without a stage.' },
    food: { state: 'completed', result: 'There is a vegan caterer.', steps: 2, jobId: food.id },
    band: { state: 'aborted', reason: 'aborted_by_user', result: 'Asking around.', jobId: band.id },
    music: { state: 'completed', result: 'Forty songs.' },
  })
  expect(heard[0]).toBe('hall: A vegan hall without a stage.')
  expect(heard.slice(1).toSorted()).toEqual(['food: There is a vegan caterer.', 'music: Forty songs.'])
  await expectChanged(food.id)
  const { agentJob } = example.stage.runtime.database
  expect(await agentJob.findFirst({ where: { inputMessage: MUSIC } })).toMatchObject({ tags: { topic: 'music' } })
})

/** The job ids that the bot has read, by the ids of its calls. */
function spawnedBy({ body }: RawRequest): Record<string, string> {
  const items: { type?: string; call_id?: string; output?: unknown }[] = Array.isArray(body['input'])
    ? body['input']
    : []
  const results = items.filter(({ type }) => type === 'function_call_output')
  return Object.fromEntries(results.map(({ call_id, output }) => [call_id, JSON.parse(String(output)).jobId]))
}

const ask = (message: string) => ({ bot: researcher, message, mode: 'async', notifyParent: true })

test('a bot does the same by itself, and ends with what the changed plan has found', async () => {
  raw.answer(
    'Plan a party.',
    (reply) => {
      for (const [topic, question] of Object.entries(PLAN)) reply.call('spawnAgent', ask(question), topic)
      reply.finish()
    },
    says('All are asked.'),
  )
  raw.answer(
    /^\[outcome of your sub-agent forge\/researcher/,
    (reply, request) => {
      const { food, band } = spawnedBy(request)
      reply.call('messageAgent', { jobId: food, message: VEGAN }, 'tell')
      reply.call('abortAgent', { jobId: band, reason: 'the hall has no stage' }, 'drop')
      reply.call('spawnAgent', ask(MUSIC), 'music')
      reply.finish()
    },
    says('The plan is changed.'),
    // What no sub-agent has told it, it cannot say.
    (reply, { body }) => {
      const prompt = JSON.stringify(body)
      for (const found of ['A vegan hall without a stage.', 'There is a vegan caterer.', 'Forty songs.'])
        if (prompt.includes(found)) reply.text(found)
      reply.finish()
    },
  )
  const planned = planParty(offshoot, callerIn('chat-2'), 'Plan a party.')
  const { food, band } = await untilAllWork()
  const party = await runningJob('Plan a party.')
  await waitUntil(async () => (await readJob(example.stage, party.id)).waitingOn === 'inbox', { what: 'the park' })
  foundHall()
  await messageTo(food.id)
  await waitUntil(
    async () => {
      const { waitingOn, steps } = await readJob(example.stage, party.id)
      return waitingOn === 'inbox' && steps === 4
    },
    { what: 'the second park' },
  )
  foundFood()

  const outcome = await planned
  expect(outcome).toMatchObject({
    state: 'completed',
    steps: 5,
    result: 'A vegan hall without a stage.There is a vegan caterer.Forty songs.',
  })
  expect(await endOf(example.stage, band.id)).toMatchObject({ state: 'aborted', result: 'Asking around.' })
  await expectChanged(food.id)
  const calls = await example.stage.runtime.database.agentToolCall.findMany({ where: { jobId: party.id } })
  expect(calls.map(({ toolName }) => toolName)).not.toContain('checkAgent')
})
