// An MCP server (streamable HTTP, with sessions) as a process of its own: tools that answer, wait, fail and say too much,
// and counts of what its clients hold open. PORT: where it listens, 0 for a free one. TOKEN: the bearer that it wants.
import { randomUUID } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text as readText } from 'node:stream/consumers'
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import { isInitializeRequest } from '@modelcontextprotocol/sdk/types.js'
import { z } from 'zod'

export interface McpCounts {
  /** Sessions that were opened, and those that nobody has closed. */
  opened: number
  sessions: number
  /** Requests that are not answered in full. */
  requests: number
  /** The calls of `slow`, by their text. */
  slow: Record<string, 'running' | 'ended' | 'cancelled'>
}

const sessions = new Map<string, StreamableHTTPServerTransport>()
const counts: McpCounts = { opened: 0, sessions: 0, requests: 0, slow: {} }
const released = new Map<string, () => void>()
const token = process.env['TOKEN']

const textResult = (text: string) => ({ content: [{ type: 'text' as const, text }] })
const saying = { text: z.string() }

function createMcpServer(): McpServer {
  const server = new McpServer({ name: 'offshoot-test', version: '1.0.0' })
  server.registerTool('echo', { description: 'Says it again.', inputSchema: saying }, ({ text }) => textResult(text))
  server.registerTool('slow', { description: 'Waits to be released.', inputSchema: saying }, async ({ text }, call) => {
    counts.slow[text] = 'running'
    await new Promise<void>((resolve) => {
      released.set(text, resolve)
      call.signal.addEventListener('abort', () => resolve())
    })
    counts.slow[text] = call.signal.aborted ? 'cancelled' : 'ended'
    return textResult(`waited for ${text}`)
  })
  server.registerTool('failing', { description: 'Fails.', inputSchema: saying }, ({ text }, call) => {
    throw new Error(
      text === 'header' ? `not with ${String(call.requestInfo?.headers['authorization'])}` : `no such ${text}`,
    )
  })
  server.registerTool('huge', { inputSchema: { megabytes: z.number() } }, ({ megabytes }) =>
    textResult('x'.repeat(megabytes * 1_000_000)),
  )
  server.registerTool('look', { description: 'Shows a picture.' }, () => ({
    content: [{ type: 'image', mimeType: 'image/png', data: 'iVBORw0KGgo=' }],
  }))
  server.registerTool('odd.name/with a space', {}, () => textResult('odd'))
  return server
}

async function answerMcp(request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (token !== undefined && request.headers.authorization !== `Bearer ${token}`) {
    response.writeHead(401, { 'content-type': 'text/plain' })
    response.end(`not you: ${request.headers.authorization}`)
    return
  }
  const sessionId = request.headers['mcp-session-id']
  const present = typeof sessionId === 'string' ? sessions.get(sessionId) : undefined
  if (typeof sessionId === 'string' && present === undefined) {
    response.writeHead(404).end()
    return
  }
  const body: unknown = request.method === 'POST' ? JSON.parse(await readText(request)) : undefined
  if (present !== undefined) return present.handleRequest(request, response, body)
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized(id) {
      sessions.set(id, transport)
      counts.opened += 1
    },
    onsessionclosed: (id) => void sessions.delete(id),
  })
  if (!isInitializeRequest(body)) {
    response.writeHead(400, { 'content-type': 'text/plain' }).end('no session')
    return
  }
  await createMcpServer().connect(transport)
  await transport.handleRequest(request, response, body)
}

async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { pathname, searchParams } = new URL(request.url ?? '/', 'http://127.0.0.1')
  if (pathname === '/counts') {
    response.setHeader('content-type', 'application/json')
    response.end(JSON.stringify({ ...counts, sessions: sessions.size } satisfies McpCounts))
  } else if (pathname === '/release') {
    released.get(searchParams.get('text') ?? '')?.()
    response.end()
  } else {
    counts.requests += 1
    response.once('close', () => (counts.requests -= 1))
    await answerMcp(request, response)
  }
}

const server = createServer((request, response) => {
  answer(request, response).catch((error: unknown) => {
    process.stderr.write(`${String(error)}\n`)
    response.destroy()
  })
})
server.listen(Number(process.env['PORT'] ?? 0), '127.0.0.1', () => {
  // A server that listens on a port has an address with that port.
  const { port } = server.address() as AddressInfo
  process.send?.({ ready: true, url: `http://127.0.0.1:${port}` })
})
process.on('SIGTERM', () => process.exit(0))
