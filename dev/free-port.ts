import { once } from 'node:events'
import { createServer } from 'node:net'

/** Whether a server could listen there now, on every address of this machine and on the loopback address. */
export async function isPortFree(port: number) {
  return (await canListen(port)) && (await canListen(port, '127.0.0.1'))
}

/**
 * Starts a server that cannot choose its own port. Another process may take a free port first; then the next one is tried.
 * @throws what `start` throws, when that is not about the port.
 */
export async function onFreePort<Server>(start: (port: number) => Promise<Server>, attempts = 5): Promise<Server> {
  const port = await freePort()
  try {
    return await start(port)
  } catch (error) {
    if (attempts > 1 && error instanceof Error && /address already in use/i.test(error.message)) {
      return onFreePort(start, attempts - 1)
    }
    throw error
  }
}

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  server.close()
  await once(server, 'close')
  if (address === null || typeof address === 'string') throw new Error('This machine gives no TCP port.')
  return address.port
}

function canListen(port: number, host?: string) {
  const { promise, resolve } = Promise.withResolvers<boolean>()
  const server = createServer()
  server.once('error', () => resolve(false))
  server.listen({ port, ...(host !== undefined && { host }) }, () => server.close(() => resolve(true)))
  return promise
}
