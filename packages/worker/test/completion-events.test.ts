// Completion events and the death of the process that was to send them.
import { endOf, readJob, spawnRoot } from '@offshoot/testing/agents'
import { type InngestStub, startInngestStub } from '@offshoot/testing/inngest-stub'
import { type MockModel, startMockModel } from '@offshoot/testing/mock-model'
import { startApiProcess, startWorkerProcess } from '@offshoot/testing/processes'
import { startTcpProxy, type TcpProxy } from '@offshoot/testing/tcp-proxy'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'

let model: MockModel
let inngest: InngestStub
let way: TcpProxy
let stage: TestStage
beforeAll(async () => {
  model = await startMockModel()
  inngest = await startInngestStub()
  way = await startTcpProxy(inngest.url)
  stage = await openTestStage({
    environment: { OPENAI_BASE_URL: model.baseUrl, INNGEST_DEV: 'true', INNGEST_BASE_URL: way.url },
  })
  await stage.putBot('writer')
  model.answer('write', ['a poem'])
})
beforeEach(() => {
  inngest.reset()
  way.heal()
})
afterAll(async () => {
  await stage.close()
  await way.close()
  await inngest.stop()
  await model.stop()
})

/** A job that a worker process brings to its end. `untilKill` says when that process is killed. */
async function endInProcessThatDies(untilKill: () => Promise<unknown>): Promise<string> {
  const worker = await startWorkerProcess(stage.environment)
  const { id } = await spawnRoot(stage, 'writer', 'write', { completionEvent: { name: 'poem/written' } })
  await endOf(stage, id)
  await untilKill()
  worker.kill('SIGKILL')
  await worker.exited
  expect(await readJob(stage, id)).toMatchObject({ state: 'completed', completionEventFired: false })
  return id
}

test('LOSS-18: an event whose process died between commit and sending is sent by the next process', async () => {
  way.silence()
  const id = await endInProcessThatDies(async () => undefined)
  expect(inngest.asked).toEqual([])
  way.heal()
  const api = await startApiProcess(stage.environment)
  await waitUntil(async () => (await readJob(stage, id)).completionEventFired)
  expect(inngest.received).toMatchObject([{ id: `agent-job-${id}-1`, data: { result: 'a poem' } }])
  await api.stop()
})

test('STATE-8: an event whose process died before it had the answer is sent again with the same id', async () => {
  inngest.behave('hang')
  const id = await endInProcessThatDies(() => waitUntil(() => inngest.asked.length > 0))
  inngest.behave(200)
  const api = await startApiProcess(stage.environment)
  await waitUntil(async () => (await readJob(stage, id)).completionEventFired)
  expect(inngest.asked).toEqual([`agent-job-${id}-1`, `agent-job-${id}-1`])
  await api.stop()
})
