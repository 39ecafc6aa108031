import { createOffshoot, type Offshoot } from '@offshoot/shared'
import { createApiKey, ensureUser } from '@offshoot/shared/db/users'
import type { SpawnContext } from '@offshoot/shared/spawn-context'
import { startApiProcess, type TestProcess } from '@offshoot/testing/processes'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ExampleStage, openExampleStage } from './example-stage.ts'
import { runAsSomebodyElse, whoDidWhat } from './identity.ts'

let example: ExampleStage
let server: TestProcess
let offshoot: Offshoot
beforeAll(async () => {
  example = await openExampleStage()
  server = await startApiProcess(example.environment)
  offshoot = await createOffshoot({ environment: example.environment })
  example.mock.answer('How loud is Kling?', ['80 decibels.'])
})
afterAll(async () => {
  await offshoot.close()
  await server.stop()
  await example.close()
})

const alice: SpawnContext = {
  userId: 'alice',
  parentConvoId: 'chat-1',
  parentConvoOwnerId: 'alice',
  parentConvoSpaceId: null,
  spawnDepth: 0,
}

test('alice runs a sub-agent as bob only when she may', async () => {
  const { database } = example.stage.runtime
  expect(await runAsSomebodyElse(offshoot, alice, 'bob', 'How loud is Kling?')).toMatchObject({
    state: 'failed',
    jobId: '',
    reason: 'not_authorized',
    error: expect.stringContaining('Not authorized to spawn sub-agent as user bob.'),
  })
  await database.userDelegate.create({ data: { userId: 'alice', delegateUserId: 'bob' } })
  const outcome = await runAsSomebodyElse(offshoot, alice, 'bob', 'How loud is Kling?')
  expect(outcome.state).toBe('completed')
  const job = await database.agentJob.findUniqueOrThrow({ where: { id: outcome.jobId } })
  expect(job).toMatchObject({ ownerId: 'bob', triggeredById: 'alice', grant: 'delegate' })
  // By the context, without a row.
  const context = { ...alice, delegateUserIds: ['carol'] }
  const third = await runAsSomebodyElse(offshoot, context, 'carol', 'How loud is Kling?')
  expect(third.state).toBe('completed')
})

test('the history says who did what, to those who may see the job', async () => {
  const { database } = example.stage.runtime
  const { jobId } = await runAsSomebodyElse(
    offshoot,
    { ...alice, delegateUserIds: ['dora'] },
    'dora',
    'How loud is Kling?',
  )
  const handle = await offshoot.attach('dora', jobId)
  await handle?.steer('One more thing.')
  for (const userId of ['alice', 'dora']) {
    await ensureUser(database, userId)
    const api = { url: server.url, key: await createApiKey(database, userId) }
    expect(await whoDidWhat(api, jobId)).toEqual(['spawned by alice', 'ended by Offshoot', 'refused by dora'])
  }
})
