import { once } from 'node:events'
import { createServer } from 'node:net'

/**
 * A free port for a server that is to end and come back: below those that systems give to whoever asks for any, so that
 * nobody else has it meanwhile.
 */
export async function portToReturnTo(): Promise<number> {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 10_000)
    const server = createServer().listen(port, '127.0.0.1')
    const free = await Promise.race([
      once(server, 'listening').then(() => true),
      once(server, 'error').then(() => false),
    ])
    if (!free) continue
    server.close()
    await once(server, 'close')
    return port
  }
}
