import type { Config } from '@offshoot/shared/config'

/** The lanes that this process knows of: the default one, and those that WORKER_LANES names. */
export function lanesOf(config: Pick<Config, 'WORKER_LANES'>): string[] {
  return [...new Set(['default', ...config.WORKER_LANES])]
}
