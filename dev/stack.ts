import { deployMigrations } from '../prisma/deploy-migrations.ts'
import { generateClientIfStale } from '../prisma/generate-client.ts'
import { environment } from './environment.ts'
import { isPortFree } from './free-port.ts'
import { secondsSince, type Log } from './log-line.ts'
import { startMockModel } from './mock-model.ts'
import { startNodeProcess } from './node-process.ts'
import type { DemoApiKeys } from './seed.ts'
import { startServices, type Services } from './services.ts'

export type StackOptions = {
  workers: number
  /** Keeps the data there for the next time; without, it is thrown away at the end. */
  dataDir?: string | undefined
  /** The API's; without, API_PORT, else 3000 or, where that is taken, a free one. 0 takes a free one. */
  port?: number | undefined
  log: Log
  /** API and workers log only what is wrong, unless LOG_LEVEL says otherwise. */
  quiet?: boolean
  /** How long a worker that is told to stop waits for its jobs' steps; WORKER_DRAIN_MS else. */
  drainMs?: number
  /** Gives up starting. */
  signal: AbortSignal
}

export type Stack = {
  apiUrl: string
  databaseUrl: string
  redisUrl: string
  /** What a host of one's own sets to use this stack, besides DATABASE_URL and REDIS_URL. */
  modelEnv: Record<string, string>
  apiKeys: DemoApiKeys
  pids: { api: number; workers: number[] }
  /** Resolves, with how it ended, when the API's process ends by itself or from outside. */
  apiEnded: Promise<string>
  /** Ends everything in good order: the API and the workers, then the model, then the services. */
  stop(): Promise<void>
  /** Ends the API and the workers at once. */
  kill(): void
}

type NodeProcess = Awaited<ReturnType<typeof startNodeProcess>>
type Part = { stop(): Promise<void> }

const DEFAULT_PORT = 3000

/**
 * Brings up all of Offshoot on this machine: services, a migrated and seeded database, a mock model unless the environment
 * names another one, the API and the workers, each a process of its own.
 * @throws Error that says what failed; nothing is left running then.
 */
export async function startStack(options: StackOptions): Promise<Stack> {
  const layers: Part[][] = []
  const stop = async () => {
    for (const layer of layers.toReversed()) await Promise.all(layer.map((part) => part.stop()))
  }
  try {
    return { ...(await startLayers(options, layers)), stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** Each layer that stands is added to `layers` at once, so that a failure of the next one can end it. */
async function startLayers(options: StackOptions, layers: Part[][]): Promise<Omit<Stack, 'stop'>> {
  const { log, signal } = options
  await generateClientIfStale()
  const services = await startServices(options)
  layers.push([services])

  const startedAt = performance.now()
  await deployMigrations(services.databaseUrl, signal)
  const { seedDemo } = await import('./seed.ts') // late: it needs the generated client
  const { apiKeys } = await seedDemo(services.databaseUrl)
  log(`the database is migrated and seeded (${secondsSince(startedAt)})`)

  const model = await startModel(log)
  layers.push([model])

  const processes: NodeProcess[] = []
  layers.push(processes)
  const env = {
    DATABASE_URL: services.databaseUrl,
    REDIS_URL: services.redisUrl,
    ...dashboardLogin(apiKeys.admin),
    ...(options.quiet === true ? { LOG_LEVEL: environment.logLevel ?? 'warn' } : {}),
    ...(options.drainMs === undefined ? {} : { WORKER_DRAIN_MS: String(options.drainMs) }),
    ...model.env,
  }
  const [api, workers] = await startProcesses({ options, services, env, onStarted: (one) => processes.push(one) })
  return {
    apiUrl: api.url ?? unknownUrl(),
    databaseUrl: services.databaseUrl,
    redisUrl: services.redisUrl,
    modelEnv: model.env,
    apiKeys,
    pids: { api: api.pid, workers: workers.map((worker) => worker.pid) },
    apiEnded: api.endedUnasked,
    kill: () => processes.forEach((one) => one.kill()),
  }
}

/** Who may see Bull Board, unless the environment says it: the admin, with its API key. */
function dashboardLogin(adminKey: string): Record<string, string> {
  return environment.hasDashboardLogin ? {} : { BULL_BOARD_USER: 'admin', BULL_BOARD_PASSWORD: adminKey }
}

async function startModel(log: Log): Promise<Part & { env: Record<string, string> }> {
  if (environment.hasModel) {
    log('using the models that OPENAI_BASE_URL and OPENAI_API_KEY name')
    return { env: {}, stop: async () => {} }
  }
  const { baseUrl, stop } = await startMockModel()
  log(`a mock model answers at ${baseUrl} (set OPENAI_API_KEY for a real one)`)
  return { env: { OPENAI_BASE_URL: baseUrl, OPENAI_API_KEY: 'mock' }, stop }
}

type ProcessesSetup = {
  options: StackOptions
  services: Services
  env: Record<string, string>
  onStarted: (started: NodeProcess) => void
}

/** The API and the workers, at once; when one of them fails it waits until the others stand, so that they can be ended. */
async function startProcesses({ options, services, env, onStarted }: ProcessesSetup) {
  const { log, signal } = options
  const failed = new AbortController()
  const both = AbortSignal.any([signal, failed.signal])
  const start = async (name: string, file: string, more: Record<string, string> = {}) => {
    const startedAt = performance.now()
    const one = await startNodeProcess({ name, file, env: { ...env, ...more }, adopt: services.adopt, signal: both })
    onStarted(one)
    log(`${name} is ready${one.url ? ` at ${one.url}` : ''}, pid ${one.pid} (${secondsSince(startedAt)})`)
    return one
  }
  const startWorker = async (number: number) => {
    const name = `worker ${number}`
    const worker = await start(name, 'packages/worker/src/main.ts')
    void worker.endedUnasked.then((how) => {
      log(`${name}, pid ${worker.pid}, has ended (${how}); it is not started again`)
    })
    return worker
  }
  const api = startApi(options, (port) => start('the API', 'packages/api/src/main.ts', port))
  const workers = Promise.all(Array.from({ length: options.workers }, (_, index) => startWorker(index + 1)))
  return Promise.all([api, workers]).catch(async (error: unknown) => {
    failed.abort()
    await Promise.allSettled([api, workers])
    throw error
  })
}

/** On the port that was asked for; else on 3000, or a free one when that is taken, be it just before the API takes it. */
async function startApi({ port, log }: StackOptions, start: (port: Record<string, string>) => Promise<NodeProcess>) {
  if (port !== undefined) return start({ API_PORT: String(port) })
  if (environment.apiPort !== undefined) return start({})
  const startOnFreePort = () => {
    log(`port ${DEFAULT_PORT} is taken: the API takes a free one (API_PORT or --port chooses)`)
    return start({ API_PORT: '0' })
  }
  if (!(await isPortFree(DEFAULT_PORT))) return startOnFreePort()
  return start({ API_PORT: String(DEFAULT_PORT) }).catch(async (error: unknown) => {
    if (await isPortFree(DEFAULT_PORT)) throw error
    return startOnFreePort()
  })
}

function unknownUrl(): never {
  throw new Error('The API did not say where it listens.')
}
