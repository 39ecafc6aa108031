import { expect, test } from 'vitest'
import { getSpawnContext, runWithSpawnContext, type SpawnContext } from './spawn-context.ts'

const contextOf = (userId: string): SpawnContext => ({
  userId,
  parentConvoId: 'convo',
  parentConvoOwnerId: userId,
  parentConvoSpaceId: null,
  spawnDepth: 0,
})

async function look(): Promise<string> {
  await new Promise((resolve) => setImmediate(resolve))
  return getSpawnContext().userId
}

test('outside a context the error says what to do', () => {
  expect(() => getSpawnContext()).toThrow(/^There is no spawn context\. Wrap the call .*runWithSpawnContext\(/)
})

test('work sees its own context, also after an await and side by side with another', async () => {
  const seen = await Promise.all([
    runWithSpawnContext(contextOf('alice'), look),
    runWithSpawnContext(contextOf('bob'), look),
  ])
  expect(seen).toEqual(['alice', 'bob'])
  expect(() => getSpawnContext()).toThrow('There is no spawn context.')
})

test('a stream that was made inside keeps its context when it is read outside', async () => {
  const stream = runWithSpawnContext(
    contextOf('alice'),
    () =>
      new ReadableStream<string>({
        pull(controller) {
          controller.enqueue(getSpawnContext().userId)
          controller.close()
        },
      }),
  )
  const seen: string[] = []
  for await (const value of stream) seen.push(value)
  expect(seen).toEqual(['alice'])
})

test('an inner context hides the outer one until it is left', () => {
  runWithSpawnContext(contextOf('alice'), () => {
    expect(runWithSpawnContext(contextOf('bob'), () => getSpawnContext().userId)).toBe('bob')
    expect(getSpawnContext().userId).toBe('alice')
  })
})
