/** What services.ts asks of the process services-keeper.ts. */
export type KeeperRequest =
  | {
      kind: 'start'
      postgres: boolean
      redis: boolean
      dataDir: string | undefined
      cacheFolder: string
      searchPath: string[]
    }
  /** End these processes, too, should the asking process die. */
  | { kind: 'adopt' | 'release'; pid: number }
  | { kind: 'stop' }

/** What it answers. */
export type KeeperReport =
  | { kind: 'log'; line: string }
  | {
      kind: 'started'
      databaseUrl: string | undefined
      redisUrl: string | undefined
      pids: number[]
      temporaryFolder: string
    }
  | { kind: 'failed'; message: string }
