// STATE-8: the outcome of an async sub-agent whose parent’s turn has ended is told at least once. However often and when it
// comes, the convo hears of it once: as a message, or in the inbox of the turn that runs.
import { openConvo, readJob, startTurnOf } from '@offshoot/testing/agents'
import { claimNext, claimOf, COMPLETED, spawnChild } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { ClaimedJob } from '../src/db/agent-jobs.ts'
import { bringOutcome } from '../src/operations/child-outcome.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ environment: { MAX_ACTIVE_JOBS_PER_USER: '1000' } })
  await stage.putBot('writer')
})
afterAll(() => stage.close())

const startTurn = async (convoId: string, text: string) =>
  claimNext(stage.runtime, await startTurnOf(stage, convoId, text))
const finish = (job: ClaimedJob) => finishAgent(stage.runtime, job, { guard: claimOf(job), ending: COMPLETED })

/** A convo whose only turn has ended. */
async function idleConvo(): Promise<string> {
  const convoId = await openConvo(stage, 'writer')
  await finish(await startTurn(convoId, 'Begin.'))
  return convoId
}

/** Where the convo has the outcome, and how many turns it had after the first. */
async function heardIn(convoId: string, key: string) {
  const { database } = stage.runtime
  const [messages, inboxItems, turns] = await Promise.all([
    database.aiMessage.count({ where: { convoId, clientMessageId: key } }),
    database.inboxItem.count({ where: { key } }),
    database.agentJob.count({ where: { convoId, depth: 0 } }),
  ])
  return { messages, inboxItems, turnsSince: turns - 1 }
}

const nothing = async () => undefined
const turnBegins = async (convoId: string) => startTurn(convoId, 'What is new?')
const turnEnds = async (_: string, turn: ClaimedJob | undefined) => turn && finish(turn)

interface Case {
  wakeIdle?: boolean
  before?: (convoId: string) => Promise<ClaimedJob | undefined>
  between?: (convoId: string, turn: ClaimedJob | undefined) => Promise<unknown>
  heard: Awaited<ReturnType<typeof heardIn>>
}

const cases: [when: string, Case][] = [
  ['while nothing runs', { heard: { messages: 1, inboxItems: 0, turnsSince: 0 } }],
  [
    'again while the turn runs that it has begun',
    { wakeIdle: true, heard: { messages: 1, inboxItems: 0, turnsSince: 1 } },
  ],
  [
    'again while a turn runs that has read it as a message',
    { between: turnBegins, heard: { messages: 1, inboxItems: 0, turnsSince: 1 } },
  ],
  ['while a turn runs', { before: turnBegins, heard: { messages: 0, inboxItems: 1, turnsSince: 1 } }],
  [
    'again after the turn that had it in its inbox has ended',
    {
      wakeIdle: true,
      before: turnBegins,
      between: turnEnds,
      heard: { messages: 1, inboxItems: 1, turnsSince: 1 },
    },
  ],
]

test.each(cases)('STATE-8: an outcome that comes twice, %s, is heard once', async (when, each) => {
  const { wakeIdle = false, before = nothing, between = nothing, heard } = each
  const convoId = await idleConvo()
  const outcome = { convoId, key: `outcome:${when}`, text: 'The news.', wakeIdle }
  const turn = await before(convoId)
  await bringOutcome(stage.runtime, outcome)
  await between(convoId, turn)
  await bringOutcome(stage.runtime, outcome)
  expect(await heardIn(convoId, outcome.key)).toEqual(heard)
})

test('STATE-8: an outcome that several bring at the same moment is heard once and begins one turn, 20 times', async () => {
  for (let round = 0; round < 20; round += 1) {
    const convoId = await idleConvo()
    const outcome = { convoId, key: `outcome:moment:${round}`, text: 'The news.', wakeIdle: true }
    await Promise.all(Array.from({ length: 4 }, () => bringOutcome(stage.runtime, outcome)))
    expect(await heardIn(convoId, outcome.key)).toEqual({ messages: 1, inboxItems: 0, turnsSince: 1 })
  }
})

test('STATE-8: an outcome that comes again wakes no turn that has read it and waits for another one', async () => {
  const { database } = stage.runtime
  const convoId = await idleConvo()
  const park = (turn: ClaimedJob) =>
    finishAgent(stage.runtime, turn, { guard: claimOf(turn), ending: COMPLETED, parkTimeoutMs: 60_000 })
  const turn = await startTurn(convoId, 'Wait for the other one.')
  await spawnChild(stage.runtime, turn, { notifyParent: true })
  expect(await park(turn)).toBe('parked')
  const outcome = { convoId, key: 'outcome:parked', text: 'The news.', wakeIdle: true }
  await bringOutcome(stage.runtime, outcome)
  expect(await readJob(stage, turn.id)).toMatchObject({ state: 'pending', deliverySeq: 2 })
  const woken = await claimNext(stage.runtime, turn.id)
  await database.inboxItem.update({ where: { key: outcome.key }, data: { consumedAtStep: 1 } })
  expect(await park(woken)).toBe('parked')
  await bringOutcome(stage.runtime, outcome)
  expect(await readJob(stage, turn.id)).toMatchObject({ waitingOn: 'inbox', deliverySeq: 2 })
})

test('STATE-8: an outcome whose telling was not noted is told again, and heard once', async () => {
  const { database, outbox } = stage.runtime
  const convoId = await openConvo(stage, 'writer')
  const turn = await startTurn(convoId, 'Begin.')
  const child = await spawnChild(stage.runtime, turn, { notifyParent: true, wakeIdleParent: true })
  await finish(turn)
  await database.agentJob.update({ where: { id: child.id }, data: { onParentEnd: 'continue' } })
  await finish(await claimNext(stage.runtime, child.id))
  const key = `outcome:${child.id}:1`
  const told = () => database.outbox.findFirst({ where: { key, doneAt: { not: null } } })
  const { id } = await waitUntil(told, { what: 'the outcome is told' })
  await database.outbox.update({ where: { id }, data: { doneAt: null, nextAttemptAt: new Date(0) } })
  await outbox.dispatchDue()
  await waitUntil(told, { what: 'the outcome is told again' })
  expect(await heardIn(convoId, key)).toEqual({ messages: 1, inboxItems: 0, turnsSince: 1 })
  expect(await readJob(stage, child.id)).toMatchObject({ state: 'completed' })
})
