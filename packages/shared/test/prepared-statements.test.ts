// What goes to pg itself is prepared once a session, and a session outlives a migration.
import { spawnRoot } from '@offshoot/testing/agents'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { claimJob, findJob } from '../src/db/agent-jobs.ts'
import { freeTreesLock } from '../src/operations/transact.ts'
import { sql } from '../src/db/database.ts'
import { newId } from '../src/ids.ts'

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage({ environment: { DATABASE_POOL_SIZE: '1' } })
  await stage.putBot('writer')
})
afterAll(() => stage.close())

async function addColumn(table: 'AgentJob' | 'AgentTree'): Promise<void> {
  const column = `new-${newId()}`
  await stage.runtime.database.$executeRawUnsafe(`alter table "offshoot"."${table}" add column "${column}" text`)
}

const spawned = async () => (await spawnRoot(stage, 'writer', 'go')).id

test('a claim and a look succeed when a migration has added columns', async () => {
  const { direct } = stage.runtime.database
  for (let migrations = 0; migrations < 3; migrations += 1) {
    const claimed = await spawned()
    await addColumn('AgentJob')
    const claim = { jobId: claimed, token: newId(), deliverySeq: 1, workerId: 'worker' }
    expect(await claimJob(direct, claim)).toMatchObject({ id: claimed, attempt: 1 })
    expect(await findJob(direct, claimed)).toMatchObject({ id: claimed, attempt: 1 })
    await addColumn('AgentJob')
    expect(await findJob(direct, claimed)).toMatchObject({ id: claimed, attempt: 1 })
  }
})

test('a transaction fails once when a migration has added columns, and not again in its session', async () => {
  const { direct } = stage.runtime.database
  const rootJobId = await spawned()
  const lockAndRead = () =>
    direct.lockThenWrite(freeTreesLock([rootJobId]), () => sql`select * from "offshoot"."AgentTree"`)
  const trees = await stage.runtime.database.agentTree.count()
  expect((await lockAndRead()).written).toHaveLength(trees)
  await addColumn('AgentTree')
  await expect(lockAndRead()).rejects.toThrow('cached plan')
  expect((await lockAndRead()).written).toHaveLength(trees)
})
