// The MCP server of mcp-server.ts, started by a test, and what it says of its clients.
import path from 'node:path'
import type { McpCounts } from './mcp-server.ts'
import { startProcess } from './processes.ts'

export interface McpProcess {
  /** To be set as a bot's `mcpServers[].url`. */
  url: string
  counts(): Promise<McpCounts>
  /** Lets a call of `slow` end. */
  release(text: string): Promise<void>
  kill(signal: NodeJS.Signals): void
  exited: Promise<unknown>
  stop(): Promise<void>
}

/** `port`: that of a server that has ended, to come back in its place. */
export async function startMcpProcess(options: { port?: number; token?: string } = {}): Promise<McpProcess> {
  const { url, kill, exited, stop } = await startProcess(path.join(import.meta.dirname, 'mcp-server.ts'), {
    PORT: String(options.port ?? 0),
    ...(options.token === undefined ? {} : { TOKEN: options.token }),
  })
  return {
    url: `${url}/mcp`,
    async counts() {
      const response = await fetch(`${url}/counts`)
      // Written by mcp-server.ts as this type.
      return (await response.json()) as McpCounts
    },
    async release(text) {
      await fetch(`${url}/release?text=${encodeURIComponent(text)}`)
    },
    kill,
    exited,
    stop,
  }
}
