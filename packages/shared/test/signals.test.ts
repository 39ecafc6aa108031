// Signals: messages that make something happen sooner. Losing one must change only how soon.
import { startTcpProxy } from '@offshoot/testing/tcp-proxy'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { loadConfig } from '../src/config.ts'
import { openSignals, type Signals } from '../src/queue/signals.ts'

let stage: TestStage
let signals: Signals
beforeAll(async () => {
  stage = await openTestStage({ environment: { LOG_LEVEL: 'silent' } })
  signals = stage.runtime.signals
  await waitUntil(() => signals.isReachable())
})
afterAll(() => stage.close())

test('every listener of a channel hears a message, until it stops listening', async () => {
  const heard: string[] = []
  const stopFirst = await signals.subscribe('job:1', (message) => heard.push(`first ${message}`))
  const stopSecond = await signals.subscribe('job:1', (message) => heard.push(`second ${message}`))
  await signals.subscribe('job:2', () => heard.push('other'))
  signals.publish('job:1', 'a')
  await waitUntil(() => heard.length === 2)
  stopFirst()
  stopFirst()
  signals.publish('job:1', 'b')
  await waitUntil(() => heard.includes('second b'))
  expect(heard).toEqual(['first a', 'second a', 'second b'])
  stopSecond()
  const again = await signals.subscribe('job:1', (message) => heard.push(`again ${message}`))
  signals.publish('job:1', 'c')
  await waitUntil(() => heard.includes('again c'))
  again()
})

test('a listener that throws keeps no other from hearing', async () => {
  const heard: string[] = []
  await signals.subscribe('live:1', () => {
    throw new Error('a broken listener')
  })
  await signals.subscribe('live:1', (message) => heard.push(message))
  signals.publish('live:1', 'x')
  await expect.poll(() => heard).toEqual(['x'])
})

test('STUCK-4: a subscription stands again after its connection was cut', async () => {
  const proxy = await startTcpProxy(stage.config.REDIS_URL ?? '')
  const other = openSignals(loadConfig({ ...stage.environment, REDIS_URL: proxy.url }), stage.runtime.logger)
  const heard: string[] = []
  await other.subscribe('workers', (message) => heard.push(message))
  proxy.cut()
  await waitUntil(() => {
    signals.publish('workers', 'again')
    return heard.length > 0
  })
  expect(heard[0]).toBe('again')
  await other.close()
  await proxy.close()
})

test('subscribing takes half a second at most while Redis is silent, for the second listener as for the first', async () => {
  const proxy = await startTcpProxy(stage.config.REDIS_URL ?? '')
  const other = openSignals(loadConfig({ ...stage.environment, REDIS_URL: proxy.url }), stage.runtime.logger)
  await waitUntil(() => other.isReachable())
  proxy.silence()
  const before = performance.now()
  await Promise.all([other.subscribe('job:x', () => undefined), other.subscribe('job:x', () => undefined)])
  const second = other.subscribe('job:x', () => undefined)
  const outcome = await Promise.race([
    second.then(() => 'at once'),
    new Promise((resolve) => setImmediate(resolve, 'waits')),
  ])
  expect(outcome).toBe('waits')
  await second
  expect(performance.now() - before).toBeLessThan(1_500)
  other.publish('job:x', 'lost')
  await other.close()
  await proxy.close()
})
