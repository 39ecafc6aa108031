// The small HTTP listener of a worker, for probes and Prometheus. It tells of this process alone; what the whole fleet has
// to do is the API's to tell.
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { serviceMetrics } from '@offshoot/shared/fleet-metrics'
import type { Runtime } from '@offshoot/shared/runtime'
import { askServices } from '@offshoot/shared/services'
import { shareFor } from '@offshoot/shared/share-for'

export interface HealthListener {
  url: string
  close(): Promise<void>
}

/** Probes and scrapes that come at once share one look at the services. */
const SHARE_MS = 1_000

/**
 * Listens on WORKER_HEALTH_PORT. `isReady` says whether the worker takes deliveries.
 * @throws Error of code EADDRINUSE when the port is taken
 */
export async function openHealthListener(
  runtime: Pick<Runtime, 'config' | 'database' | 'signals' | 'metrics'>,
  { port, isReady }: { port: number; isReady: () => boolean },
): Promise<HealthListener> {
  const { WORKER_HEALTH_HOST: host } = runtime.config
  const { registry } = runtime.metrics
  const services = shareFor(SHARE_MS, () => askServices(runtime))

  async function answer(path: string, response: ServerResponse): Promise<void> {
    switch (path) {
      case '/livez':
        return sendJson(response, 200, { status: 'live' })
      case '/readyz': {
        const { postgres, redis } = await services()
        const ready = postgres && redis && isReady()
        const checks = { postgres: postgres ? 'ok' : 'away', redis: redis ? 'ok' : 'away', taking: isReady() }
        return sendJson(response, ready ? 200 : 503, ready ? { status: 'ready' } : { status: 'not ready', checks })
      }
      case '/metrics': {
        const texts = await Promise.all([services().then(serviceMetrics), registry.metrics()])
        response.writeHead(200, { 'content-type': registry.contentType }).end(texts.join('\n'))
        return
      }
      default:
        sendJson(response, 404, { status: 'not found', known: ['/livez', '/readyz', '/metrics'] })
    }
  }

  const server = createServer((request, response) => {
    const [path = ''] = (request.url ?? '').split('?')
    if (request.method !== 'GET' && request.method !== 'HEAD') sendJson(response, 405, { status: 'only GET' })
    else answer(path, response).catch((error: unknown) => response.destroy(error instanceof Error ? error : undefined))
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => resolve(void server.off('error', reject)))
  })
  // A server that listens on a port has an address with that port.
  const { port: taken } = server.address() as AddressInfo
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${taken}`,
    async close() {
      await new Promise((resolve) => server.close(resolve).closeAllConnections())
    },
  }
}

function sendJson(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'content-type': 'application/json', 'cache-control': 'no-store' })
  response.end(JSON.stringify(body))
}
