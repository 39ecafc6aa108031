// Connections to Redis that the network has dropped without a word, under a worker that takes deliveries.
import { loadConfig } from '@offshoot/shared/config'
import { openRuntime } from '@offshoot/shared/runtime'
import { endOf, runRoot, spawnRoot } from '@offshoot/testing/agents'
import { says, startRawModel } from '@offshoot/testing/raw-model'
import { startTcpProxy } from '@offshoot/testing/tcp-proxy'
import { redisCommand } from '@offshoot/testing/redis-command'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { expect, test } from 'vitest'
import { startWorker } from '../src/worker.ts'

test('STUCK-9: a worker whose connections fell silent takes deliveries again, also where one blocks for longer than others owe an answer', async () => {
  const raw = await startRawModel()
  const stage = await openTestStage({ environment: { OPENAI_BASE_URL: raw.baseUrl, LOG_LEVEL: 'silent' } })
  await stage.putBot('bot')
  raw.answerOthers(says('done'))
  const way = await startTcpProxy(stage.config.REDIS_URL ?? '')
  const config = loadConfig({ ...stage.environment, REDIS_URL: way.url })
  const runtime = openRuntime({ ...stage.runtime, config, name: 'proxied' })
  const worker = await startWorker(runtime)
  try {
    expect(await runRoot(stage, 'bot', 'before')).toMatchObject({ state: 'completed', attempt: 1 })
    way.silence()
    way.heal()
    const { id } = await spawnRoot(stage, 'bot', 'after')
    expect(await endOf(stage, id, 25_000)).toMatchObject({ state: 'completed', result: 'done', attempt: 1 })
    expect(await waitUntil(() => blocksForLong(stage))).toBe(true)
  } finally {
    await worker.drain()
    await runtime.close()
    await way.close()
    await stage.close()
    await raw.stop()
  }
})

/** Whether the connection on which the worker waits for deliveries has outlived twice the time that others may owe an answer. */
async function blocksForLong({ config }: TestStage): Promise<boolean> {
  const clients = String(await redisCommand(config.REDIS_URL ?? '', 'client', 'list')).split('\n')
  const blocked = clients.filter((line) => line.includes(`name=${config.QUEUE_PREFIX}:`) && line.includes(' flags=b '))
  return blocked.some((line) => Number(/ age=(\d+) /.exec(line)?.[1]) > 12)
}
