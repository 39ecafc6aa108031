// A TCP way to a service that a test can cut and mend, as if the service went away and came back.
import { createServer, connect, type AddressInfo, type Server, type Socket } from 'node:net'

export interface CuttableProxy {
  /** The service's address, through the proxy. */
  url: string
  cut(): Promise<void>
  mend(): Promise<void>
}

export async function openCuttableProxy(serviceUrl: string): Promise<CuttableProxy> {
  const target = new URL(serviceUrl)
  const sockets = new Set<Socket>()
  let server: Server | undefined

  async function listen(port: number): Promise<number> {
    const listening = createServer((client) => {
      const service = connect(Number(target.port), target.hostname)
      for (const [socket, other] of [
        [client, service],
        [service, client],
      ] as const) {
        sockets.add(socket)
        socket.on('error', () => other.destroy())
        socket.on('close', () => {
          sockets.delete(socket)
          other.destroy()
        })
        socket.pipe(other)
      }
    })
    server = listening
    await new Promise<void>((resolve) => listening.listen(port, '127.0.0.1', resolve))
    return (listening.address() as AddressInfo).port
  }

  const port = await listen(0)
  const url = new URL(serviceUrl)
  url.hostname = '127.0.0.1'
  url.port = String(port)
  return {
    url: url.href,
    async cut() {
      const closed = new Promise((resolve) => server?.close(resolve))
      for (const socket of sockets) socket.destroy()
      await closed
    },
    async mend() {
      await listen(port)
    },
  }
}
