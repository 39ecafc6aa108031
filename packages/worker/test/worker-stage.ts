// A stage with a worker that runs in the test's own process.
import type { ExtensionsInput } from '@offshoot/shared/extensions'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { startWorker, type WorkerProcess } from '../src/worker.ts'

export interface WorkerStage extends TestStage {
  worker: WorkerProcess
}

export async function openWorkerStage(
  baseUrl: string,
  options: { environment?: Record<string, string>; extensions?: ExtensionsInput } = {},
): Promise<WorkerStage> {
  const stage = await openTestStage({
    ...options,
    environment: { OPENAI_BASE_URL: baseUrl, ...options.environment },
  })
  const worker = await startWorker(stage.runtime)
  return {
    ...stage,
    worker,
    async close() {
      await worker.drain()
      await stage.close()
    },
  }
}
