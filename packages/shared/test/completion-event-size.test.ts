// What a completion event carries: a preview, and no more than any plan of Inngest takes.
import { type InngestStub, startInngestStub } from '@offshoot/testing/inngest-stub'
import { claimNext, claimOf, COMPLETED, hostOrigin, spawnInput, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { ProgramSpawnInput } from '../src/contracts/spawn.ts'
import type { Ending } from '../src/db/agent-jobs.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { spawnAgent } from '../src/operations/spawn-agent.ts'

let stage: TestStage
let inngest: InngestStub
beforeAll(async () => {
  inngest = await startInngestStub()
  stage = await openTestStage({
    environment: {
      INNGEST_BASE_URL: inngest.url,
      INNGEST_EVENT_KEY: 'test-key',
      INNGEST_SIGNING_KEY: 'signkey-test-00',
    },
  })
  await stage.putBot('writer')
})
afterAll(async () => {
  await stage.close()
  await inngest.stop()
})

async function endedJob(
  ending: Ending = COMPLETED,
  data: NonNullable<ProgramSpawnInput['completionEvent']>['data'] = { ticket: 7 },
) {
  const completionEvent = { name: 'poem/written', data }
  const job = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice', { completionEvent })).id)
  await finishAgent(stage.runtime, job, { guard: claimOf(job), ending })
  return job
}

const eventOf = (jobId: string) => inngest.received.find(({ data }) => data['jobId'] === jobId)
const dataOf = (jobId: string) => eventOf(jobId)?.data

test('LOSS-18: an event carries a preview of a long result, and the way to the whole', async () => {
  const result = '😀'.repeat(4_001)
  const long = await endedJob({ ...COMPLETED, result })
  const short = await endedJob({ ...COMPLETED, result: 'x'.repeat(8_000) })
  await waitUntil(() => dataOf(long.id) !== undefined && dataOf(short.id) !== undefined)
  expect(dataOf(long.id)).toMatchObject({
    result: '😀'.repeat(4_000),
    resultTruncated: true,
    resultPath: `/v1/agents/${long.id}/results/${long.id}`,
  })
  expect(dataOf(short.id)).toMatchObject({ result: 'x'.repeat(8_000), resultTruncated: false })
  expect(dataOf(short.id)).not.toHaveProperty('resultPath')
})

test('LOSS-18: the job’s own fields win over what was given, also those that it has not', async () => {
  const data = { jobId: 'mine', state: 'won', error: 'given', resultPath: '/x', $offshoot: 'date', ticket: 7 }
  const job = await endedJob(COMPLETED, data)
  const told = await waitUntil(() => dataOf(job.id))
  expect(told).toMatchObject({ jobId: job.id, state: 'completed', $offshoot: 'date', ticket: 7 })
  for (const name of ['error', 'resultPath']) expect(told).not.toHaveProperty(name)
})

test('LOSS-18: the largest event stays below 256 KiB; data over 64 KiB is refused at the spawn', async () => {
  // With {"blob":""} around it exactly 64 KiB.
  const data = { blob: `${'é'.repeat(32_762)}!` }
  const error = '\u0001'.repeat(5_000)
  const ending: Ending = { state: 'failed', reason: 'internal', result: '\u0001'.repeat(9_000), error, partial: true }
  const job = await endedJob(ending, data)
  const told = await waitUntil(() => dataOf(job.id))
  const bytes = Buffer.byteLength(JSON.stringify([eventOf(job.id)]))
  expect(bytes).toBeGreaterThan(65_536)
  expect(bytes).toBeLessThan(256 * 1_024)
  expect(String(told['error'])).toHaveLength(2_000)
  data.blob += '!'
  const input = spawnInput({ completionEvent: { name: 'poem/written', data } })
  expect(await spawnAgent(stage.runtime, hostOrigin('alice'), input)).toEqual({
    kind: 'refused',
    refusal: {
      refused: true,
      reason: 'invalid_request',
      error: `completionEvent.data may have 65536 bytes of JSON; this one has 65537. Keep it yourself and send an id of it.`,
    },
  })
})
