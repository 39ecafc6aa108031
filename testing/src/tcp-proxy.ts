// A way to a server that a test can make go silent or break, while the server goes on for everybody else.
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'

export interface TcpProxy {
  /** The same URL as the server's, with the proxy's port. */
  url: string
  /** From now on no byte passes and no connection is answered, as when a network drops packets. */
  silence(): void
  /** The same for those connections that are there and began with this text, as the name of a session of Postgres. */
  silenceThose(text: string): void
  /** Ends the silence for what connects from now on; what is silent stays so. */
  heal(): void
  /** Cuts all connections with a reset. */
  cut(): void
  /** Lets the next request that contains `text` through, and cuts its connection instead of bringing the answer. */
  loseAnswerOf(text: string): void
  close(): Promise<void>
}

export async function startTcpProxy(serverUrl: string): Promise<TcpProxy> {
  const target = new URL(serverUrl)
  const sockets = new Set<Socket>()
  const beginnings = new Map<Socket, { bytes: Buffer; upstream: Socket }>()
  let silent = false
  let lost: string | undefined
  const keep = (socket: Socket) => {
    sockets.add(socket)
    socket.on('error', () => undefined).once('close', () => sockets.delete(socket))
  }
  const server = createServer((client) => {
    keep(client)
    if (silent) return
    const upstream = connect(Number(target.port), target.hostname)
    keep(upstream)
    let losing = false
    client.once('data', (bytes) => beginnings.set(client, { bytes, upstream }))
    client.on('data', (bytes) => {
      if (lost !== undefined && bytes.includes(lost)) {
        lost = undefined
        losing = true
      }
      upstream.write(bytes)
    })
    upstream.on('data', (bytes) => (losing ? client.resetAndDestroy() : client.write(bytes)))
    client.once('close', () => {
      beginnings.delete(client)
      upstream.destroy()
    })
    upstream.once('close', () => client.destroy())
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = new URL(serverUrl)
  // The server listens on TCP, so its address has a port.
  url.port = String((server.address() as AddressInfo).port)
  url.hostname = '127.0.0.1'
  const cut = () => {
    for (const socket of sockets) socket.resetAndDestroy()
  }
  return {
    url: url.href,
    silence() {
      silent = true
      for (const socket of sockets) socket.pause()
    },
    silenceThose(text) {
      for (const [client, { bytes, upstream }] of beginnings) {
        if (!bytes.includes(text)) continue
        client.pause()
        upstream.pause()
      }
    },
    heal() {
      silent = false
    },
    cut,
    loseAnswerOf(text) {
      lost = text
    },
    async close() {
      cut()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}
