import os from 'node:os'
import path from 'node:path'

/** What the scripts in this folder take from the environment, and nothing else of theirs reads. Empty counts as unset. */
export const environment = {
  databaseUrl: variable('DATABASE_URL'),
  redisUrl: variable('REDIS_URL'),
  apiPort: variable('API_PORT'),
  /** Whether models come from somewhere else than the mock. */
  hasModel: variable('OPENAI_BASE_URL') !== undefined || variable('OPENAI_API_KEY') !== undefined,
  hasDashboardLogin: variable('BULL_BOARD_USER') !== undefined || variable('BULL_BOARD_PASSWORD') !== undefined,
  logLevel: variable('LOG_LEVEL'),
  /** Where downloads are kept from one run to the next. */
  cacheFolder: path.join(variable('XDG_CACHE_HOME') ?? path.join(os.homedir(), '.cache'), 'offshoot'),
  searchPath: (variable('PATH') ?? '').split(path.delimiter),
}

function variable(name: string) {
  return process.env[name] || undefined
}
