// What the tests of the examples stand on: a database of their own, a mock model, a worker process.
import { type MockModel, startMockModel } from '@offshoot/testing/mock-model'
import { startWorkerProcess, type TestProcess } from '@offshoot/testing/processes'
import type { TestStage } from '@offshoot/testing/test-stage'

export interface ExampleStage {
  mock: MockModel
  stage: TestStage
  /** For processes, and for `process.env`. */
  environment: Record<string, string>
  close(): Promise<void>
}

export async function openExampleStage(more: Record<string, string> = {}): Promise<ExampleStage> {
  const mock = await startMockModel()
  // @ai-sdk/openai reads this when it is imported, which is what the next line leads to.
  process.env['OPENAI_BASE_URL'] = mock.baseUrl
  const { openTestStage } = await import('@offshoot/testing/test-stage')
  const stage = await openTestStage({ environment: { OPENAI_BASE_URL: mock.baseUrl } })
  const environment = { ...stage.environment, ...more }
  await stage.putBot('researcher')
  let worker: TestProcess | undefined
  try {
    worker = await startWorkerProcess(environment)
  } catch (error) {
    await stage.close()
    await mock.stop()
    throw error
  }
  return {
    mock,
    stage,
    environment,
    async close() {
      await worker.stop()
      await stage.close()
      await mock.stop()
    },
  }
}

export const researcher = { botGroup: 'forge', botHandle: 'researcher' }

/** A model's call of spawnAgent. */
export function spawnCall(message: string) {
  return { name: 'spawnAgent', arguments: { bot: researcher, message } }
}
