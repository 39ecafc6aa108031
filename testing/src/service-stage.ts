// What a fault of Redis or Postgres is staged on: worker processes and an API on services that the test may break, and a
// model whose answers wait for the test.
import { createApiKey } from '@offshoot/shared/db/users'
import { type TestProcess, startApiProcess, startWorkerProcess } from './processes.ts'
import { type RawModel, startRawModel } from './raw-model.ts'
import { type RestartableRedis, startRestartableRedis } from './restartable-redis.ts'
import { openTestStage, type TestStage } from './test-stage.ts'

export interface ServiceStage extends TestStage {
  raw: RawModel
  redis: RestartableRedis
  workers: TestProcess[]
  api: TestApi
  /** The processes that have ended, and the worker rows that are not the first ones: [] while nothing had to start again. */
  restarts(): Promise<string[]>
}

export interface TestApi {
  process: TestProcess
  /** Asks as a user. */
  fetch(userId: string, path: string, body?: object): Promise<Response>
  /** Spawns an async `forge/bot` as a user. @throws Error when it is not accepted */
  spawn(userId: string, message: string): Promise<string>
  /** The status of `/readyz`. */
  readiness(): Promise<number>
}

/** `forge/bot` on a Redis of the stage's own, with an API and some workers. */
export async function openServiceStage(options: {
  workers: number
  environment?: Record<string, string>
  /** What processes get instead of the stage's own settings, like the address of a proxy. */
  processEnvironment?: (stage: TestStage) => Promise<Record<'api' | 'worker', Record<string, string>>>
}): Promise<ServiceStage> {
  const [redis, raw] = await Promise.all([startRestartableRedis(), startRawModel()])
  const stage = await openTestStage({
    environment: {
      REDIS_URL: redis.url,
      OPENAI_BASE_URL: raw.baseUrl,
      WORKER_LOCK_MS: '2000',
      MAX_ACTIVE_JOBS_PER_USER: '1000',
      ...options.environment,
    },
  })
  await stage.putBot('bot')
  const own = await options.processEnvironment?.(stage)
  const [api, ...workers] = await Promise.all([
    openApi(stage, { ...stage.environment, ...own?.api }),
    ...Array.from({ length: options.workers }, () => startWorkerProcess({ ...stage.environment, ...own?.worker })),
  ])
  const ended: string[] = []
  for (const { pid, exited } of [api.process, ...workers])
    void exited.then((how) => ended.push(`process ${pid}: ${how}`))
  const firstRows = new Set((await stage.runtime.database.worker.findMany()).map(({ id }) => id))
  return {
    ...stage,
    raw,
    redis,
    workers,
    api,
    async restarts() {
      const rows = await stage.runtime.database.worker.findMany()
      return [...ended, ...rows.filter(({ id }) => !firstRows.has(id)).map(({ id }) => `worker row ${id}`)]
    },
    async close() {
      await Promise.all([api.process, ...workers].map((process) => process.stop()))
      await stage.close()
      await raw.stop()
      await redis.close()
    },
  }
}

async function openApi({ runtime }: TestStage, environment: Record<string, string>): Promise<TestApi> {
  const process = await startApiProcess(environment)
  const keys = new Map<string, Promise<string>>()
  const keyOf = (userId: string) => {
    const key = keys.get(userId) ?? createApiKey(runtime.database, userId)
    keys.set(userId, key)
    return key
  }
  async function call(userId: string, path: string, body?: object): Promise<Response> {
    const headers = { authorization: `Bearer ${await keyOf(userId)}`, 'content-type': 'application/json' }
    const post = body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) }
    return fetch(process.url + path, { headers, ...post })
  }
  return {
    process,
    fetch: call,
    async spawn(userId, message) {
      const bot = { botGroup: 'forge', botHandle: 'bot' }
      const response = await call(userId, '/v1/agents', { bot, message, mode: 'async' })
      const text = await response.text()
      if (response.status !== 202) throw new Error(`the spawn was answered with ${response.status}: ${text}`)
      const { jobId }: { jobId: string } = JSON.parse(text)
      return jobId
    },
    readiness: async () => (await fetch(`${process.url}/readyz`)).status,
  }
}
