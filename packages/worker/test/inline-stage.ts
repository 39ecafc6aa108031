// A stage without Redis, whose jobs run in the test's own process.
import type { ExtensionsInput } from '@offshoot/shared/extensions'
import type { InlineRunner } from '@offshoot/shared/runtime'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { createInlineRunner } from '../src/inline-runner.ts'

export interface InlineStage extends TestStage {
  runner: InlineRunner
}

export async function openInlineStage(
  baseUrl: string,
  options: { environment?: Record<string, string>; extensions?: ExtensionsInput } = {},
): Promise<InlineStage> {
  const environment = { OPENAI_BASE_URL: baseUrl, ...options.environment }
  const stage = await openTestStage({ ...options, environment, runsInline: true })
  const runner = await createInlineRunner(stage.runtime)
  return {
    ...stage,
    runner,
    async close() {
      await runner.close()
      await stage.close()
    },
  }
}
