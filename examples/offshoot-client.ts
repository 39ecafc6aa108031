import { createOffshoot } from '@offshoot/shared'

/** One a process: it holds the connections to Postgres and Redis. Close it when the process ends. */
export const offshoot = await createOffshoot()
