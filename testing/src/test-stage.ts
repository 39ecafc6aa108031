// What an integration test stands on: a database and a queue prefix of its own, a runtime on them, and some bots and
// users. One a test file: `const stage = await openTestStage()` in `beforeAll`, `stage.close()` in `afterAll`.
import type { BotWrite } from '@offshoot/shared/contracts/bot'
import { botWriteSchema } from '@offshoot/shared/contracts/bot'
import { type Config, loadConfig } from '@offshoot/shared/config'
import { putBot } from '@offshoot/shared/db/bots'
import { createExtensions, type ExtensionsInput } from '@offshoot/shared/extensions'
import { createLogger } from '@offshoot/shared/logger'
import { openRuntime, type Runtime } from '@offshoot/shared/runtime'
import { Redis } from 'ioredis'
import { createFreshDatabase } from './fresh-database.ts'

export interface TestStage {
  /** The settings as environment variables, for processes that a test starts. */
  environment: Record<string, string>
  config: Config
  runtime: Runtime
  /** Writes `forge/<handle>`, which answers with the mock model. */
  putBot(handle: string, bot?: Partial<BotWrite>): Promise<void>
  close(): Promise<void>
}

/** Short limits, so that what takes a minute in production takes a second here. */
const TEST_ENVIRONMENT = {
  WORKER_HEARTBEAT_MS: '500',
  // A test's own event loop may be busy for a second or two; a worker in it must not count as silent then.
  WORKER_LOCK_MS: '5000',
  WORKER_DRAIN_MS: '5000',
  LOG_LEVEL: 'error',
}

export const SUB_AGENT_TOOLS = ['spawnAgent', 'checkAgent', 'abortAgent']

export interface TestStageOptions {
  environment?: Record<string, string>
  extensions?: ExtensionsInput
  /** A host without Redis, whose jobs run in its own process unless a spawn says otherwise. */
  runsInline?: boolean
}

export async function openTestStage(options: TestStageOptions = {}): Promise<TestStage> {
  const { runsInline = false } = options
  const database = await createFreshDatabase()
  const environment: Record<string, string> = {
    ...TEST_ENVIRONMENT,
    DATABASE_URL: database.databaseUrl,
    REDIS_URL: runsInline ? '' : (process.env['REDIS_URL'] ?? ''),
    QUEUE_PREFIX: `{test-${process.pid}-${Math.random().toString(36).slice(2, 8)}}`,
    OPENAI_API_KEY: 'mock',
    ...options.environment,
  }
  const config = loadConfig(environment, { redis: runsInline ? 'optional' : 'required' })
  const logger = createLogger({ level: config.LOG_LEVEL, name: 'test' })
  const runtime = openRuntime({
    config,
    logger,
    extensions: createExtensions(config, { ...(runsInline ? { runner: 'inline' } : {}), ...options.extensions }),
    name: 'test',
    runsInline,
  })
  return {
    environment,
    config,
    runtime,
    async putBot(handle, bot = {}) {
      const full = botWriteSchema.parse({
        name: handle,
        integration: 'openai',
        modelName: 'gpt-5',
        systemPrompt: `You are ${handle}.`,
        toolNames: SUB_AGENT_TOOLS,
        ...bot,
      })
      await putBot(runtime.database, { group: 'forge', handle }, full, null)
    },
    async close() {
      await runtime.close()
      if (config.REDIS_URL !== undefined) await deleteKeys(config.REDIS_URL, config.QUEUE_PREFIX)
      await database.drop()
    },
  }
}

async function deleteKeys(redisUrl: string, prefix: string): Promise<void> {
  const redis = new Redis(redisUrl, { lazyConnect: true, retryStrategy: () => null, maxRetriesPerRequest: 0 })
  redis.on('error', () => undefined)
  try {
    await redis.connect()
  } catch {
    return // the test has ended its Redis, and the keys with it
  }
  const bare = prefix.replaceAll(/[{}]/g, '')
  for await (const keys of redis.scanStream({ match: `*${bare}*`, count: 500 }))
    if (keys.length > 0) await redis.del(...keys)
  await redis.quit()
}
