import path from 'node:path'
import { createOffshoot } from '@offshoot/shared'
import { startInngestStub } from '@offshoot/testing/inngest-stub'
import { startApiProcess } from '@offshoot/testing/processes'
import { waitUntil } from '@offshoot/testing/wait-until'
import { expect, test } from 'vitest'
import { openExampleStage, researcher } from './example-stage.ts'

test('the function gets the completion event of a sub-agent', async () => {
  const inngest = await startInngestStub()
  const example = await openExampleStage({
    OFFSHOOT_CONFIG: path.join(import.meta.dirname, 'inngest-functions.ts'),
    INNGEST_DEV: 'true',
    INNGEST_BASE_URL: inngest.url,
  })
  const api = await startApiProcess(example.environment)
  const offshoot = await createOffshoot({ environment: example.environment })
  example.mock.answer('Where is my parcel?', ['At the door.'])
  await offshoot.spawn(
    { userId: 'alice', parentConvoId: 'chat', parentConvoOwnerId: 'alice', parentConvoSpaceId: null, spawnDepth: 0 },
    {
      bot: researcher,
      message: 'Where is my parcel?',
      mode: 'async',
      completionEvent: { name: 'question/answered', data: { ticket: 7 } },
    },
  )
  const event = await waitUntil(() => inngest.received[0])

  // What Inngest does with an event for which the app has a function.
  const run = {
    ctx: { attempt: 0, run_id: 'run-1', stack: { current: 0, stack: [] } },
    event,
    events: [event],
    steps: {},
  }
  const response = await fetch(`${api.url}/api/inngest?fnId=offshoot-answer-ticket&stepId=step`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ ...run, version: 1 }),
  })
  expect(await response.json()).toBe('Ticket 7: At the door.')

  await offshoot.close()
  await api.stop()
  await example.close()
  await inngest.stop()
})
