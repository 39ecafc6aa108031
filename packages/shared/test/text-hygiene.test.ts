// Every place where a text of a host, a request, a model or another system enters storage: what Postgres would refuse is
// stored legibly, and found again by the text that was given.
import { openConvo, readJob, say } from '@offshoot/testing/agents'
import { claimNext, claimOf, hostOrigin, jobOrigin, spawnInput, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createOffshoot, type Offshoot } from '../src/client.ts'
import { botSchema } from '../src/contracts/bot.ts'
import { loadToolCalls, storeToolEnd, storeToolStart } from '../src/db/journal.ts'
import { markOutboxFailed } from '../src/db/outbox.ts'
import { decodeStored } from '../src/db/stored-value.ts'
import { requestAbort } from '../src/operations/abort-agent.ts'
import { answerSpawnCalls } from '../src/operations/answer-spawn-calls.ts'
import { spawnAgent } from '../src/operations/spawn-agent.ts'
import { startTurn } from '../src/operations/start-turn.ts'
import type { SpawnContext } from '../src/spawn-context.ts'

const BAD = 'a\u0000b\ud83d'
const LEGIBLE = 'a␀b\ufffd'

let stage: TestStage
let offshoot: Offshoot
beforeAll(async () => {
  const hostBot = botSchema.parse({
    id: `bot-${BAD}`,
    group: 'host',
    handle: 'own',
    name: BAD,
    integration: 'openai',
    modelName: 'gpt-5',
    systemPrompt: BAD,
    toolNames: [BAD],
    childPrompts: { [BAD]: BAD },
  })
  const extensions = {
    resolveBot: (ref: object) => ('botGroup' in ref && ref.botGroup === 'host' ? hostBot : undefined),
  }
  stage = await openTestStage({ extensions })
  await stage.putBot('writer')
  offshoot = await createOffshoot({ environment: stage.environment, extensions: {} })
})
afterAll(async () => {
  await offshoot.close()
  await stage.close()
})

const context: SpawnContext = {
  userId: `user-${BAD}`,
  parentConvoId: `convo-${BAD}`,
  parentConvoOwnerId: `user-${BAD}`,
  parentConvoSpaceId: `space-${BAD}`,
  delegateUserIds: [`delegate-${BAD}`],
  spawnDepth: 0,
}
const writer = { botGroup: 'forge', botHandle: 'writer' }

describe('LOSS-7 LOSS-8: U+0000 and half an emoji are stored legibly', () => {
  test('in all that a host says: ids of users, convos and spaces, delegates, keys, tags, overrides, events', async () => {
    const input = {
      bot: writer,
      message: BAD,
      mode: 'async' as const,
      tags: { [BAD]: BAD },
      overrides: { systemPromptAppend: BAD },
      completionEvent: { name: BAD, data: { [BAD]: [BAD] } },
      runAsUserId: `delegate-${BAD}`,
    }
    const options = { idempotencyKey: `key-${BAD}` }
    const { id: jobId } = await offshoot.spawn(context, input, options)
    expect(await readJob(stage, jobId)).toMatchObject({
      triggeredById: `user-${LEGIBLE}`,
      triggeredByIds: [`user-${LEGIBLE}`],
      ownerId: `delegate-${LEGIBLE}`,
      delegateUserIds: [`delegate-${LEGIBLE}`],
      parentConvoId: `convo-${LEGIBLE}`,
      idempotencyKey: `key-${LEGIBLE}`,
      inputMessage: LEGIBLE,
      tags: { [LEGIBLE]: LEGIBLE },
      overrides: { systemPromptAppend: LEGIBLE },
      completionEventName: LEGIBLE,
      completionEventData: { [LEGIBLE]: [LEGIBLE] },
    })
    // The same words find it again, as the same user.
    expect(await offshoot.spawn(context, input, options)).toMatchObject({ id: jobId })
    expect(await offshoot.check(context.userId, { jobId })).toMatchObject({ jobId, state: 'pending' })
    expect(await offshoot.abort(context.userId, { jobId, reason: BAD })).toMatchObject({ state: 'aborted' })
    expect(await readJob(stage, jobId)).toMatchObject({ abortText: LEGIBLE, abortRequestedBy: `user-${LEGIBLE}` })
    const own = await offshoot.spawn(context, { bot: writer, message: 'x', mode: 'async' })
    const { convoId } = await readJob(stage, own.id)
    expect(await stage.runtime.database.convo.findUnique({ where: { id: convoId } })).toMatchObject({
      ownerId: `user-${LEGIBLE}`,
      spaceId: `space-${LEGIBLE}`,
    })
  })

  test('in a bot that the host resolves, and in one that is written', async () => {
    const job = await spawnJob(stage.runtime, 'alice', { bot: { botGroup: 'host', botHandle: 'own' } })
    const { botId, toolNames, botSnapshot } = await readJob(stage, job.id)
    expect({ botId, toolNames }).toEqual({ botId: `bot-${LEGIBLE}`, toolNames: [LEGIBLE] })
    expect(decodeStored(botSnapshot)).toMatchObject({ name: LEGIBLE, childPrompts: { [LEGIBLE]: LEGIBLE } })
    await stage.putBot('odd', { name: BAD, systemPrompt: BAD, toolNames: [BAD], childPrompts: { [BAD]: BAD } })
    const where = { group_handle: { group: 'forge', handle: 'odd' } }
    expect(await stage.runtime.database.bot.findUnique({ where })).toMatchObject({
      name: LEGIBLE,
      systemPrompt: LEGIBLE,
      toolNames: [LEGIBLE],
      childPrompts: { [LEGIBLE]: LEGIBLE },
    })
  })

  test('in names and ids of tool calls, which find their call and their child again', async () => {
    const { runtime } = stage
    const job = await claimNext(runtime, (await spawnJob(runtime, 'alice')).id)
    const call = { stepIndex: 0, toolCallId: `call-${BAD}`, toolName: `tool-${BAD}` }
    await storeToolStart(runtime.database, claimOf(job), call)
    await storeToolEnd(runtime.database, claimOf(job), { ...call, outcome: { output: 1 } })
    expect(await loadToolCalls(runtime.database, job.id)).toEqual([
      { stepIndex: 0, toolCallId: `call-${LEGIBLE}`, toolName: `tool-${LEGIBLE}`, outcome: { output: 1 } },
    ])
    const spawning = {
      claim: claimOf(job),
      rootJobId: job.rootJobId,
      step: 1,
      originOf: (toolCallId: string) => jobOrigin(job, 1, toolCallId),
    }
    const calls = [{ toolCallId: `spawn-${BAD}`, toolName: 'spawnAgent', input: spawnInput() }]
    const first = await answerSpawnCalls(runtime, spawning, calls)
    expect(await answerSpawnCalls(runtime, spawning, calls)).toEqual(first)
    expect(await runtime.database.agentJob.count({ where: { parentJobId: job.id } })).toBe(1)
  })

  test('in a turn: its message, the id that its sender gave, and who sent it', async () => {
    const convoId = await openConvo(stage, 'writer')
    const text = { type: 'text' as const, text: BAD }
    const request = {
      convoId,
      userId: 'alice',
      message: { id: `message-${BAD}`, text: BAD, parts: [text] },
      ifBusy: 'steer' as const,
    }
    const answer = await startTurn(stage.runtime, request)
    expect(answer).toMatchObject({ kind: 'started' })
    expect(await startTurn(stage.runtime, request)).toEqual({ ...answer, kind: 'repeated' })
    const steer = { ...request, message: { ...request.message, id: `steer-${BAD}` } }
    expect(await startTurn(stage.runtime, steer)).toMatchObject({ kind: 'steered' })
    expect(await startTurn(stage.runtime, steer)).toMatchObject({ kind: 'repeated' })
    const [message] = await stage.runtime.database.aiMessage.findMany({ where: { convoId } })
    expect(message).toMatchObject({ clientMessageId: `message-${LEGIBLE}`, parts: [{ text: LEGIBLE }] })
    expect(await say(stage, convoId, BAD)).toMatchObject({ kind: 'steered' })
  })

  test('in who aborts, and in the history', async () => {
    const job = await spawnJob(stage.runtime, 'alice')
    await requestAbort(stage.runtime, job, { by: BAD, reason: 'aborted_by_user', text: BAD })
    expect(await readJob(stage, job.id)).toMatchObject({ state: 'aborted', error: LEGIBLE, abortRequestedBy: LEGIBLE })
    const events = await stage.runtime.database.agentEvent.findMany({ where: { jobId: job.id, actorId: LEGIBLE } })
    expect(events.map(({ kind }) => kind)).toEqual(['abort-requested', 'ended'])
  })

  test('in why something could not be told, which is cut between characters', async () => {
    const { database } = stage.runtime
    const { id } = await database.outbox.create({
      data: { jobId: 'j', kind: 'ended', key: 'odd', nextAttemptAt: new Date(Date.now() + 3_600_000) },
    })
    await markOutboxFailed(database, id, `\u0000${'😀'.repeat(300)}`, 1_000)
    const entry = await database.outbox.findUniqueOrThrow({ where: { id } })
    expect(entry).toMatchObject({ attempts: 1, lastError: `␀${'😀'.repeat(249)}` })
  })
})

test('a context that no host should make is refused by what is wrong with it', async () => {
  const input = { bot: writer, message: 'x' }
  const delegateUserIds = Array.from({ length: 1_001 }, (_, at) => `user-${at}`)
  await expect(offshoot.spawn({ ...context, delegateUserIds }, input)).rejects.toThrow(
    /The spawn context is not usable[\s\S]*1000[\s\S]*delegateUserIds/,
  )
  await expect(offshoot.spawn({ ...context, userId: '' }, input)).rejects.toThrow(/userId/)
  await expect(offshoot.spawn({ ...context, parentConvoId: 'x'.repeat(501) }, input)).rejects.toThrow(/parentConvoId/)
  await expect(offshoot.spawn(context, input, { idempotencyKey: 'x'.repeat(201) })).rejects.toThrow(/200/)
})

test('tags, filters and events have bounds, and the error says which', async () => {
  const tags = Object.fromEntries(Array.from({ length: 51 }, (_, at) => [`tag-${at}`, 'x']))
  await expect(offshoot.spawn(context, { bot: writer, message: 'x', tags })).rejects.toThrow(
    /may have at most 50 entries/,
  )
  const overrides = { toolFilter: ['x'.repeat(201)] }
  await expect(offshoot.spawn(context, { bot: writer, message: 'x', overrides })).rejects.toThrow(/toolFilter/)
  const { kind } = await spawnAgent(stage.runtime, hostOrigin('alice'), spawnInput({ tags: { a: 'b' } }))
  expect(kind).toBe('accepted')
})
