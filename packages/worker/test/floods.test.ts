// STUCK-17: one slot, and many deliveries of one user that came before another user's single job: not new ones, whose place
// in the queue is that of their owner's jobs in any case, but wakes and retries.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { retryAgent } from '@offshoot/shared/operations/retry-agent'
import { endOf, spawnRoot } from '@offshoot/testing/agents'
import { type RawModel, type RawScript, says, startRawModel } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const FLOOD = 30

let raw: RawModel
let stage: WorkerStage
beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, { environment: { WORKER_CONCURRENCY: '1' } })
  await stage.putBot('bot')
})
afterAll(async () => {
  await stage.close()
  await raw.stop()
})

interface Flood {
  /** What the first call of each of alice’s jobs comes to. */
  first: RawScript
  /** Where it is then, before the next one is spawned. */
  where: { waitingOn: 'retry' } | { state: 'failed' }
  /** Brings a delivery of each of them. */
  bringAll(jobIds: string[]): Promise<unknown>
}

const floods: [what: string, Flood][] = [
  [
    'jobs that wake',
    {
      first: (reply) => reply.status(429, { message: 'later' }, { 'retry-after': '600' }),
      where: { waitingOn: 'retry' },
      bringAll: (jobIds) =>
        stage.runtime.database.agentJob.updateMany({
          where: { id: { in: jobIds } },
          data: { waitUntil: new Date(0) },
        }),
    },
  ],
  [
    'jobs that an operator retries',
    {
      first: (reply) => reply.status(401, { message: 'no' }),
      where: { state: 'failed' },
      async bringAll(jobIds) {
        for (const jobId of jobIds) {
          const answer = await retryAgent(stage.runtime, { userId: 'ops', admin: true }, { jobId }, 'ops')
          expect(answer.kind).toBe('retried')
        }
      },
    },
  ],
]

test.each(floods)('STUCK-17: a flood of one user’s %s leaves room for another’s single job', async (what, flood) => {
  const { database, deliveries } = stage.runtime
  const of = (message: string) => `${what}: ${message}`
  const jobIds: string[] = []
  for (let at = 0; at < FLOOD; at += 1) {
    raw.answer(of(`flood ${at}`), flood.first, says('done'))
    const { id } = await spawnRoot(stage, 'bot', of(`flood ${at}`))
    await waitUntil(() => database.agentJob.findFirst({ where: { id, ...flood.where } }))
    jobIds.push(id)
  }

  // The slot is taken while they come.
  const free = Promise.withResolvers<void>()
  raw.answer(of('blocker'), async (reply, request) => {
    await free.promise
    return says('done')(reply, request)
  })
  raw.answer(of('single'), says('done'))
  await spawnRoot(stage, 'bot', of('blocker'), { userId: 'carol' })
  await waitUntil(() => raw.requests(of('blocker')).length === 1)
  await flood.bringAll(jobIds)
  await waitUntil(async () => (await deliveries.counts('default')).depth === FLOOD)
  const single = await spawnRoot(stage, 'bot', of('single'), { userId: 'bob' })
  await waitUntil(async () => (await deliveries.counts('default')).depth === FLOOD + 1)
  free.resolve()

  expect(await endOf(stage, single.id)).toMatchObject({ state: 'completed', attempt: 1 })
  expect(await database.agentJob.count({ where: { id: { in: jobIds }, state: 'pending' } })).toBeGreaterThan(FLOOD / 2)
  for (const id of jobIds) expect(await endOf(stage, id)).toMatchObject({ state: 'completed' })
})
