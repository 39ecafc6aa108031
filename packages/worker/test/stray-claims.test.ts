// A claim that stands in a live worker's name although no run there knows of it.
import { claimJob } from '@offshoot/shared/db/agent-jobs'
import { newId } from '@offshoot/shared/ids'
import { readJob, spawnRoot } from '@offshoot/testing/agents'
import { openTestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { expect, test } from 'vitest'
import { startWorker } from '../src/worker.ts'

test('STUCK-7: a claim whose answer was lost is given back by its own worker', async () => {
  const stage = await openTestStage()
  const { database } = stage.runtime
  await stage.putBot('bot', { lane: 'elsewhere' })
  const worker = await startWorker(stage.runtime)
  try {
    const { id: jobId } = await spawnRoot(stage, 'bot', 'hello')
    const { id: workerId } = await database.worker.findFirstOrThrow()
    expect(await claimJob(database, { jobId, token: newId(), deliverySeq: 1, workerId })).not.toBeNull()
    const job = await waitUntil(async () => {
      const row = await readJob(stage, jobId)
      return row.state === 'pending' && row
    })
    expect(job).toMatchObject({ claimToken: null, deliverySeq: 2, crashes: 0 })
  } finally {
    await worker.drain()
    await stage.close()
  }
})
