import path from 'node:path'
import { createOffshoot, type Offshoot } from '@offshoot/shared'
import { type MockModel, startMockModel } from '@offshoot/testing/mock-model'
import { textOf } from '@offshoot/testing/mock-request'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ExampleStage, openExampleStage } from './example-stage.ts'

let example: ExampleStage
let offshoot: Offshoot
let gateway: MockModel
beforeAll(async () => {
  gateway = await startMockModel()
  const settings = {
    OFFSHOOT_CONFIG: path.join(import.meta.dirname, 'offshoot.config.ts'),
    GATEWAY_URL: gateway.baseUrl,
  }
  example = await openExampleStage(settings)
  offshoot = await createOffshoot({ environment: example.environment })
})
afterAll(async () => {
  await offshoot.close()
  await example.close()
  await gateway.stop()
})

test('a bot uses the tool and the provider of the config module', async () => {
  await example.stage.putBot('clerk', { toolNames: ['countStock'], integration: 'gateway', modelName: 'house-model' })
  gateway.answer('How many Kling are left?', [
    { calls: [{ name: 'countStock', arguments: { article: 'Kling' } }] },
    'There are 41.',
  ])

  const outcome = await offshoot.run(
    {
      userId: 'alice',
      parentConvoId: 'chat-1',
      parentConvoOwnerId: 'alice',
      parentConvoSpaceId: null,
      spawnDepth: 0,
    },
    { bot: { botGroup: 'forge', botHandle: 'clerk' }, message: 'How many Kling are left?' },
  )

  expect(outcome).toMatchObject({ state: 'completed', result: 'There are 41.', steps: 2 })
  const [, second] = gateway.requests('How many Kling are left?')
  expect(second?.model).toBe('house-model')
  expect(JSON.parse(textOf(second?.messages.find((message) => message.role === 'tool')))).toEqual({
    article: 'Kling',
    pieces: 41,
  })
})

const orderCall = (id: string) => ({ name: 'placeOrder', arguments: { article: 'Kling' }, id })

test('an order is placed with the key of its call', async () => {
  await example.stage.putBot('buyer', { toolNames: ['placeOrder'], integration: 'gateway', modelName: 'house-model' })
  gateway.answer('Order two Kling, one by one.', [{ calls: [orderCall('call_0'), orderCall('call_1')] }, 'Ordered.'])

  const outcome = await offshoot.run(
    {
      userId: 'alice',
      parentConvoId: 'chat-1',
      parentConvoOwnerId: 'alice',
      parentConvoSpaceId: null,
      spawnDepth: 0,
    },
    { bot: { botGroup: 'forge', botHandle: 'buyer' }, message: 'Order two Kling, one by one.' },
  )

  expect(outcome).toMatchObject({ state: 'completed', result: 'Ordered.' })
  const [, second] = gateway.requests('Order two Kling, one by one.')
  const results = second?.messages.filter((message) => message.role === 'tool').map((each) => JSON.parse(textOf(each)))
  // The calls of a step run side by side: which one comes first is open, that they are two orders is not.
  expect(results?.toSorted((a, b) => a.number - b.number)).toEqual([
    { article: 'Kling', number: 1 },
    { article: 'Kling', number: 2 },
  ])
})
