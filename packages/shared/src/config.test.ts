import { expect, test } from 'vitest'
import { ConfigError, hasRedis, loadConfig } from './config.ts'

const MINIMUM = { DATABASE_URL: 'postgresql://me@localhost/db', REDIS_URL: 'redis://localhost:6379' }

/** The lines of the one error, each without its indent. */
function problemsOf(environment: Record<string, string | undefined>): string[] {
  try {
    loadConfig(environment)
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    const [first, ...rest] = error.message.split('\n')
    if (first !== 'The environment is not usable:' || rest.pop() !== 'See .env.example for every variable.') throw error
    return rest.map((line) => line.trim())
  }
  return []
}

test('two addresses are enough; everything else has the default of the contract', () => {
  expect(loadConfig(MINIMUM)).toMatchObject({
    ...MINIMUM,
    QUEUE_PREFIX: '{offshoot}',
    API_PORT: 3000,
    WORKER_CONCURRENCY: 100,
    WORKER_LANES: ['default'],
    WORKER_HEARTBEAT_MS: 5_000,
    WORKER_LOCK_MS: 30_000,
    WORKER_DRAIN_MS: 30_000,
    MAX_SPAWN_DEPTH: 3,
    MAX_CHILDREN_PER_JOB: 20,
    MAX_JOBS_PER_TREE: 100,
    MAX_ACTIVE_JOBS_PER_USER: 100,
    JOB_TIMEOUT_MS: 3_600_000,
    INNGEST_DEV: false,
    BULL_BOARD_WRITE: false,
    LOG_LEVEL: 'info',
  })
})

test('an empty variable counts as not set', () => {
  expect(loadConfig({ ...MINIMUM, API_PORT: '', OPENAI_BASE_URL: '', BULL_BOARD_USER: '' })).toMatchObject({
    API_PORT: 3000,
  })
  expect(problemsOf({ ...MINIMUM, DATABASE_URL: '' })).toEqual(['DATABASE_URL is missing'])
})

test('values are read with their types: numbers, switches and lists', () => {
  expect(
    loadConfig({
      ...MINIMUM,
      API_PORT: '0',
      WORKER_LANES: 'default, gpu,',
      INNGEST_DEV: 'true',
      BULL_BOARD_WRITE: '0',
      REDIS_CLUSTER_NODES: 'a:1, b:2',
    }),
  ).toMatchObject({
    API_PORT: 0,
    WORKER_LANES: ['default', 'gpu'],
    INNGEST_DEV: true,
    BULL_BOARD_WRITE: false,
    REDIS_CLUSTER_NODES: ['a:1', 'b:2'],
  })
})

test('one error names every variable that is missing or wrong', () => {
  const problems = problemsOf({
    REDIS_URL: 'http://localhost',
    API_PORT: '70000',
    WORKER_CONCURRENCY: 'many',
    WORKER_HEARTBEAT_MS: '1.5',
    MAX_JOBS_PER_TREE: '0',
    LOG_LEVEL: 'loud',
    INNGEST_DEV: 'perhaps',
    REDIS_CLUSTER_NODES: 'nohost',
  })
  const named = problems.map((line) => line.split(' ')[0])
  expect(new Set(named)).toEqual(
    new Set([
      'DATABASE_URL',
      'REDIS_URL',
      'API_PORT',
      'WORKER_CONCURRENCY',
      'WORKER_HEARTBEAT_MS',
      'MAX_JOBS_PER_TREE',
      'LOG_LEVEL',
      'INNGEST_DEV',
      'REDIS_CLUSTER_NODES.0',
    ]),
  )
  expect(problems).toContain('DATABASE_URL is missing')
  expect(problemsOf({ ...MINIMUM, WORKER_LANES: ' , ' })).toEqual(['WORKER_LANES must name at least one lane'])
  expect(problems).toContain('REDIS_URL must be a redis:// or rediss:// address')
})

test('one error names problems of single variables and of combinations together', () => {
  const problems = problemsOf({
    LOG_LEVEL: 'loud',
    NODE_ENV: 'production',
    INNGEST_DEV: 'true',
    BULL_BOARD_USER: 'admin',
    WORKER_HEARTBEAT_MS: '10001',
  })
  expect(problems).toEqual([
    'DATABASE_URL is missing',
    expect.stringMatching(/^LOG_LEVEL /),
    'WORKER_LOCK_MS must be at least three times WORKER_HEARTBEAT_MS (10001)',
    expect.stringMatching(/^BULL_BOARD_PASSWORD and BULL_BOARD_USER come together/),
    expect.stringMatching(/^INNGEST_DEV is refused in production/),
    expect.stringMatching(/^REDIS_URL is missing: set it, or REDIS_CLUSTER_NODES, or REDIS_SENTINELS/),
  ])
})

test('Redis may be one server, a cluster, or sentinels with the name of their master', () => {
  const { DATABASE_URL } = MINIMUM
  expect(problemsOf({ DATABASE_URL, REDIS_CLUSTER_NODES: 'a:1,b:2' })).toEqual([])
  expect(problemsOf({ DATABASE_URL, REDIS_SENTINELS: 'a:1', REDIS_SENTINEL_NAME: 'main' })).toEqual([])
  expect(problemsOf({ DATABASE_URL, REDIS_SENTINELS: 'a:1' })).toEqual([
    'REDIS_SENTINEL_NAME is missing: REDIS_SENTINELS needs the name of the master',
  ])
})

test('Redis may be absent only where it is optional; what is wrong with it then is a problem all the same', () => {
  const { DATABASE_URL } = MINIMUM
  const config = loadConfig({ DATABASE_URL, REDIS_URL: '' }, { redis: 'optional' })
  expect([hasRedis(config), hasRedis(loadConfig(MINIMUM))]).toEqual([false, true])
  expect(() => loadConfig({ DATABASE_URL })).toThrow('REDIS_URL is missing')
  expect(() => loadConfig({ DATABASE_URL, REDIS_URL: 'http://x' }, { redis: 'optional' })).toThrow(
    'REDIS_URL must be a redis:// or rediss:// address',
  )
})

test("SEC-8: production refuses Inngest's development switch", () => {
  const keys = { INNGEST_EVENT_KEY: 'e', INNGEST_SIGNING_KEY: 's' }
  expect(problemsOf({ ...MINIMUM, NODE_ENV: 'production', INNGEST_DEV: '1', ...keys })).toEqual([
    'INNGEST_DEV is refused in production: unset it and set INNGEST_EVENT_KEY and INNGEST_SIGNING_KEY',
  ])
  expect(problemsOf({ ...MINIMUM, NODE_ENV: 'production', ...keys })).toEqual([])
  expect(problemsOf({ ...MINIMUM, NODE_ENV: 'development', INNGEST_DEV: '1' })).toEqual([])
})

test('SEC-8: the event key and the signing key come together', () => {
  expect(problemsOf({ ...MINIMUM, INNGEST_EVENT_KEY: 'e' })).toEqual([
    expect.stringMatching(/^INNGEST_SIGNING_KEY and INNGEST_EVENT_KEY come together/),
  ])
  expect(problemsOf({ ...MINIMUM, INNGEST_SIGNING_KEY: 's' })).toHaveLength(1)
})

test('SEC-6: an error about the environment repeats no value', () => {
  const secret = 'hunter2'
  const environment = {
    DATABASE_URL: `mysql://u:${secret}@localhost`,
    REDIS_URL: `http://:${secret}@localhost`,
    OPENAI_BASE_URL: secret,
    LOG_LEVEL: secret,
  }
  expect(problemsOf(environment).join('\n')).not.toContain(secret)
})
