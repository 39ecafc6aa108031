// What a host's own model reads of a sub-agent's long result, and what the host's page gets.
import { claimNext, claimOf, COMPLETED, hostOrigin, spawnInput, spawnJob } from '@offshoot/testing/jobs-without-worker'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import type { ToolSet } from 'ai'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOffshoot, type Offshoot } from '../src/client.ts'
import { MAX_RESULT_LENGTH } from '../src/contracts/truncated-result.ts'
import { finishAgent } from '../src/operations/finish-agent.ts'
import { runSpawn } from '../src/tools/spawn-agent.ts'

const LONG = 'result '.repeat(20_000)

let stage: TestStage
let offshoot: Offshoot
let jobId: string
beforeAll(async () => {
  stage = await openTestStage()
  await stage.putBot('writer')
  offshoot = await createOffshoot({ environment: stage.environment, extensions: {} })
  const job = await claimNext(stage.runtime, (await spawnJob(stage.runtime, 'alice')).id)
  await finishAgent(stage.runtime, job, { guard: claimOf(job), ending: { ...COMPLETED, result: LONG } })
  jobId = job.id
})
afterAll(async () => {
  await offshoot.close()
  await stage.close()
})

const asUser = <T>(userId: string, work: () => T) =>
  offshoot.runWithSpawnContext(
    { userId, parentConvoId: 'c', parentConvoOwnerId: userId, parentConvoSpaceId: null, spawnDepth: 0 },
    work,
  )

/** What a tool gives the page, and what the model reads of it. */
async function call(tools: ToolSet, name: string, input: object, userId = 'alice') {
  const used = tools[name]
  const options = { toolCallId: 'call', messages: [], context: undefined }
  const output: unknown = await asUser(userId, () => used?.execute?.(input, options))
  const read = await used?.toModelOutput?.({ toolCallId: 'call', input, output })
  return { output, read: JSON.stringify(read) }
}

test('COST-11: the page gets the whole result, the model head and tail', async () => {
  for (const [name, field] of [
    ['checkAgent', 'result'],
    ['abortAgent', 'partialResult'],
  ] as const) {
    const { output, read } = await call(offshoot.tools(), name, { jobId, includePartial: false, waitSeconds: 0 })
    expect(Object(output)[field] === LONG).toBe(true)
    expect(read.length).toBeLessThan(1.1 * MAX_RESULT_LENGTH)
    expect(read).toContain(`of ${LONG.length} characters are left out here.]`)
    expect(read).not.toContain('readResult')
  }
})

test('COST-11: of a sync spawn the page gets the whole, the model head and tail', async () => {
  const spawned = runSpawn(stage.runtime, hostOrigin('alice'), spawnInput({ mode: 'sync' }), undefined)
  const first = spawned.next()
  const { id } = await waitUntil(() => stage.runtime.database.agentJob.findFirst({ where: { mode: 'sync' } }))
  const job = await claimNext(stage.runtime, id)
  await finishAgent(stage.runtime, job, { guard: claimOf(job), ending: { ...COMPLETED, result: LONG } })
  let output: unknown = (await first).value
  for await (const next of spawned) output = next
  expect(Object(output).result === LONG).toBe(true)
  const read = await offshoot.tools()['spawnAgent']?.toModelOutput?.({ toolCallId: 'call', input: {}, output })
  expect(JSON.stringify(read).length).toBeLessThan(1.1 * MAX_RESULT_LENGTH)
})

test('COST-11: a host that offers readResult lets its model read on, as the user', async () => {
  expect(Object.keys(offshoot.tools())).toEqual(['spawnAgent', 'checkAgent', 'abortAgent'])
  const tools = offshoot.tools({ readResult: true })
  const { read } = await call(tools, 'checkAgent', { jobId, includePartial: false, waitSeconds: 0 })
  expect(read).toContain(`Read on with readResult({ \\"ref\\": \\"${jobId}\\", \\"offset\\": `)
  const page = await call(tools, 'readResult', { ref: jobId, offset: 139_990, length: 20_000 })
  expect(page.output).toEqual({ ref: jobId, characters: 140_000, offset: 139_990, text: 'lt result ' })
  expect(page.read).toContain('Characters 139990 to 140000 of 140000. This is the end.')
  const foreign = await call(tools, 'readResult', { ref: jobId, offset: 0, length: 10 }, 'bob')
  expect(foreign.read).toContain('There is no result')
})
