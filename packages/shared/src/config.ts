// The environment, read once. `loadConfig` is the only place that looks at `process.env` for settings; one error lists
// every problem.
import { z } from 'zod'

const milliseconds = (fallback: number, minimum = 1) =>
  z.coerce.number().int().min(minimum).max(2_147_483_647).default(fallback)
const count = (fallback: number, minimum = 1) => z.coerce.number().int().min(minimum).default(fallback)
const flag = z.stringbool().default(false)

const redisUrl = z.url({ protocol: /^rediss?$/, error: 'must be a redis:// or rediss:// address' })
const hostPort = z.string().regex(/^[^\s:,]+:\d+$/, 'must be host:port, several separated by commas')
const hostPorts = z
  .string()
  .transform((list) => list.split(',').map((item) => item.trim()))
  .pipe(z.array(hostPort).min(1))

/** Every variable with its unit and default; `.env.example` repeats them for people. */
export const environmentSchema = z.object({
  DATABASE_URL: z.url({ protocol: /^postgres(ql)?$/, error: 'must be a postgresql:// address' }),
  DATABASE_POOL_SIZE: count(10),
  REDIS_URL: redisUrl.optional(),
  REDIS_CLUSTER_NODES: hostPorts.optional(),
  REDIS_SENTINELS: hostPorts.optional(),
  REDIS_SENTINEL_NAME: z.string().optional(),
  QUEUE_PREFIX: z.string().min(1).default('{offshoot}'),
  API_PORT: z.coerce.number().int().min(0).max(65_535).default(3000),
  API_HOST: z.string().default('127.0.0.1'),
  WORKER_CONCURRENCY: count(100),
  WORKER_LANES: z
    .string()
    .default('default')
    .transform((list) =>
      list
        .split(',')
        .map((lane) => lane.trim())
        .filter(Boolean),
    )
    .pipe(z.array(z.string()).min(1, 'must name at least one lane')),
  WORKER_HEARTBEAT_MS: milliseconds(5_000, 50),
  WORKER_LOCK_MS: milliseconds(30_000, 200),
  WORKER_DRAIN_MS: milliseconds(30_000, 0),
  WORKER_HEALTH_PORT: z.coerce.number().int().min(0).max(65_535).optional(),
  WORKER_HEALTH_HOST: z.string().default('127.0.0.1'),
  MAX_SPAWN_DEPTH: count(3, 0),
  MAX_CHILDREN_PER_JOB: count(20),
  MAX_JOBS_PER_TREE: count(100),
  MAX_ACTIVE_JOBS_PER_USER: count(100),
  JOB_TIMEOUT_MS: milliseconds(3_600_000),
  JOB_QUEUE_TIMEOUT_MS: milliseconds(3_600_000),
  MODEL_FIRST_CHUNK_MS: milliseconds(120_000),
  MODEL_CHUNK_MS: milliseconds(60_000),
  MODEL_STEP_MS: milliseconds(600_000),
  TOOL_TIMEOUT_MS: milliseconds(300_000),
  MCP_CONNECT_TIMEOUT_MS: milliseconds(10_000),
  PARK_TIMEOUT_MS: milliseconds(600_000),
  RETENTION_DAYS: count(30),
  OPENAI_API_KEY: z.string().optional(),
  OPENAI_BASE_URL: z.url().optional(),
  INNGEST_EVENT_KEY: z.string().optional(),
  INNGEST_SIGNING_KEY: z.string().optional(),
  INNGEST_BASE_URL: z.url().optional(),
  INNGEST_DEV: flag,
  BULL_BOARD_USER: z.string().min(1).optional(),
  BULL_BOARD_PASSWORD: z.string().min(1).optional(),
  BULL_BOARD_WRITE: flag,
  LOG_LEVEL: z.enum(['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent']).default('info'),
  LOG_CONTENT: flag,
  OTEL_EXPORTER_OTLP_ENDPOINT: z.url().optional(),
  OFFSHOOT_CONFIG: z.string().optional(),
  NODE_ENV: z.string().optional(),
})

/** Looks at combinations also when single variables are wrong or missing, so that one error lists every problem. */
const configSchema = environmentSchema.superRefine(
  (value, context) => {
    const problem = (name: string, message: string) => context.addIssue({ code: 'custom', path: [name], message })
    if (value.REDIS_SENTINELS !== undefined && value.REDIS_SENTINEL_NAME === undefined) {
      problem('REDIS_SENTINEL_NAME', 'is missing: REDIS_SENTINELS needs the name of the master')
    }
    // A worker stops its runs one heartbeat before others may take them: with two, one that is a little late would do it.
    if (value.WORKER_LOCK_MS < 3 * value.WORKER_HEARTBEAT_MS) {
      problem('WORKER_LOCK_MS', `must be at least three times WORKER_HEARTBEAT_MS (${value.WORKER_HEARTBEAT_MS})`)
    }
    if ((value.BULL_BOARD_USER === undefined) !== (value.BULL_BOARD_PASSWORD === undefined)) {
      problem(
        'BULL_BOARD_PASSWORD',
        'and BULL_BOARD_USER come together: set both, or neither to leave the dashboard off',
      )
    }
    if (value.NODE_ENV === 'production' && value.INNGEST_DEV) {
      problem('INNGEST_DEV', 'is refused in production: unset it and set INNGEST_EVENT_KEY and INNGEST_SIGNING_KEY')
    }
    if (!value.INNGEST_DEV && (value.INNGEST_EVENT_KEY === undefined) !== (value.INNGEST_SIGNING_KEY === undefined)) {
      problem('INNGEST_SIGNING_KEY', 'and INNGEST_EVENT_KEY come together: set both, or neither to send no events')
    }
  },
  { when: () => true },
)

/** Every process needs Redis, but for a host that runs jobs itself. */
const configWithRedisSchema = configSchema.superRefine(
  (value, context) => {
    if (hasRedis(value)) return
    const message = 'is missing: set it, or REDIS_CLUSTER_NODES, or REDIS_SENTINELS with REDIS_SENTINEL_NAME'
    context.addIssue({ code: 'custom', path: ['REDIS_URL'], message })
  },
  { when: () => true },
)

export type Config = Readonly<z.infer<typeof environmentSchema>> & {
  /** The variables that begin with MCP_SECRET_, which headers of MCP servers may name. */
  readonly mcpSecrets: ReadonlyMap<string, string>
}

export function hasRedis(config: Pick<Config, 'REDIS_URL' | 'REDIS_CLUSTER_NODES' | 'REDIS_SENTINELS'>): boolean {
  return [config.REDIS_URL, config.REDIS_CLUSTER_NODES, config.REDIS_SENTINELS].some((given) => given !== undefined)
}

export class ConfigError extends Error {
  override name = 'ConfigError'
}

/**
 * Parses the environment. An empty variable counts as not set. With `redis: 'optional'` there need be no Redis.
 * @throws ConfigError with one line for every problem
 */
export function loadConfig(
  environment: Record<string, string | undefined>,
  { redis = 'required' }: { redis?: 'required' | 'optional' } = {},
): Config {
  const given = Object.fromEntries(Object.entries(environment).filter(([, value]) => value !== ''))
  const parsed = (redis === 'required' ? configWithRedisSchema : configSchema).safeParse(given)
  if (parsed.success) return { ...parsed.data, mcpSecrets: mcpSecretsOf(given) }
  const lines = parsed.error.issues.map((issue) => {
    const name = issue.path.join('.')
    return given[name] === undefined && issue.code === 'invalid_type'
      ? `${name} is missing`
      : `${name} ${issue.message}`
  })
  throw new ConfigError(
    `The environment is not usable:\n${lines.map((line) => `  ${line}`).join('\n')}\nSee .env.example for every variable.`,
  )
}

function mcpSecretsOf(given: Record<string, string | undefined>): Map<string, string> {
  return new Map(
    Object.entries(given).flatMap(([name, value]): [string, string][] =>
      name.startsWith('MCP_SECRET_') && value !== undefined ? [[name, value]] : [],
    ),
  )
}
