// Many more jobs than slots.
import { endOf, spawnRoot } from '@offshoot/testing/agents'
import { openServiceStage, type ServiceStage } from '@offshoot/testing/service-stage'
import { afterAll, beforeAll, expect, test } from 'vitest'

const FLOOD = 300
const ANSWER_AFTER_MS = 200

let stage: ServiceStage

beforeAll(async () => {
  stage = await openServiceStage({ workers: 1, environment: { WORKER_CONCURRENCY: '2' } })
})
afterAll(() => stage.close())

test("STUCK-17: a flood of one user's jobs leaves room for the single jobs of others, at a later priority too", async () => {
  const { raw, runtime } = stage
  const open = Promise.withResolvers<void>()
  for (const message of ['flood', 'single'])
    raw.answer(message, async (reply) => {
      await open.promise
      await new Promise((resolve) => setTimeout(resolve, ANSWER_AFTER_MS))
      reply.text('done')
      reply.finish()
    })
  await Promise.all(Array.from({ length: FLOOD }, () => spawnRoot(stage, 'bot', 'flood', { userId: 'alice' })))
  const equal = await spawnRoot(stage, 'bot', 'single', { userId: 'bob' })
  const later = await spawnRoot(stage, 'bot', 'single', { userId: 'carol', priority: 50 })
  open.resolve()
  for (const { id } of [equal, later]) expect(await endOf(stage, id, 30_000)).toMatchObject({ state: 'completed' })
  const queued = await runtime.database.agentJob.count({ where: { ownerId: 'alice', state: 'pending' } })
  expect(queued).toBeGreaterThan(FLOOD / 2)
})
