// The connection of one attempt to one MCP server. It is made when it is first needed, and anew for the next call when it
// has broken: a server that was restarted is of use again.
import { createMCPClient, type MCPClient } from '@ai-sdk/mcp'
import type { Tool } from 'ai'
import type { McpServer } from '@offshoot/shared/contracts/bot'
import { headOf } from '@offshoot/shared/contracts/text'
import type { Config } from '@offshoot/shared/config'
import type { Logger } from '@offshoot/shared/logger'
import { breaksConnection, describeMcpFailure, McpFailure, refusalOf } from './mcp-errors.ts'
import { callOverHttp, mcpFetch } from './mcp-fetch.ts'
import { untilAborted } from './pause.ts'

export interface McpConnection {
  /** The server's tools by its own names. @throws McpFailure when it does not give them in time */
  tools(): Promise<ReadonlyMap<string, Tool>>
  /** Calls a tool. @throws Error with what the model may read when the call fails, the signal's reason when it is aborted */
  call(tool: string, input: unknown, signal: AbortSignal | undefined): Promise<unknown>
  close(): Promise<void>
}

export interface McpConnectionOptions {
  server: McpServer
  config: Pick<Config, 'MCP_CONNECT_TIMEOUT_MS' | 'mcpSecrets'>
  logger: Logger
  /** Ends what is under way when the attempt is stopped. */
  signal: AbortSignal
}

interface Opened {
  client: MCPClient
  tools: ReadonlyMap<string, Tool>
  calls: number
  broken: boolean
}

type CallOptions = Parameters<NonNullable<Tool['execute']>>[1]

/** Characters of what a server says about a call that failed. */
const MAX_COMPLAINT_LENGTH = 2_000
/** A shorter secret is none, and might stand in any text. */
const MIN_SECRET_LENGTH = 8

export function connectMcpServer(options: McpConnectionOptions): McpConnection {
  const { server, config, signal } = options
  const open = new Set<Opened>()
  let current: Promise<Opened> | undefined
  let closed = false

  function connected(): Promise<Opened> {
    current ??= openClient(options).then(
      async (opened) => {
        open.add(opened)
        if (closed) await close(opened)
        return opened
      },
      (error: unknown) => {
        current = undefined
        throw error
      },
    )
    return current
  }

  async function close(opened: Opened): Promise<void> {
    open.delete(opened)
    await opened.client.close().catch(() => undefined)
  }

  async function call(name: string, input: unknown, callSignal: AbortSignal | undefined): Promise<unknown> {
    const opened = await connected().catch((error: unknown) => {
      signal.throwIfAborted()
      throw toolError(`The MCP server "${server.name}" ${describeMcpFailure(error)}. The call was not made.`)
    })
    const execute = opened.tools.get(name)?.execute
    if (execute === undefined)
      throw toolError(`The MCP server "${server.name}" does not offer ${name} any more. The call was not made.`)
    opened.calls += 1
    try {
      // The client's tools read nothing of the options but the signal.
      const optionsOf = (abortSignal: AbortSignal) => ({ abortSignal }) as CallOptions
      return await callOverHttp(callSignal, async (limit): Promise<unknown> => execute(input, optionsOf(limit)))
    } catch (error) {
      if (callSignal?.aborted === true) throw error
      if (breaksConnection(error)) {
        opened.broken = true
        current = undefined
      }
      throw toolError(sentenceFor(error))
    } finally {
      opened.calls -= 1
      if (opened.broken && opened.calls === 0) void close(opened)
    }
  }

  function sentenceFor(error: unknown): string {
    const refusal = refusalOf(error)
    if (refusal === undefined)
      return `The MCP server "${server.name}" ${describeMcpFailure(error)}. The call may have taken effect all the same. Check before you make it again.`
    return `The MCP server "${server.name}" refused the call: ${complaint(refusal, config)}`
  }

  return {
    tools: async () => (await connected()).tools,
    async call(name, input, callSignal) {
      const result = await call(name, input, callSignal)
      const failure = errorTextOf(result)
      if (failure !== undefined) throw toolError(complaint(failure, config))
      return result
    },
    async close() {
      closed = true
      await Promise.all([...open].map(close))
    },
  }
}

/** @throws McpFailure */
async function openClient({ server, config, logger, signal }: McpConnectionOptions): Promise<Opened> {
  const timeout = AbortSignal.timeout(config.MCP_CONNECT_TIMEOUT_MS)
  const limit = AbortSignal.any([signal, timeout])
  let client: MCPClient | undefined
  try {
    client = await createMCPClient({
      transport: {
        type: 'http',
        url: server.url,
        headers: resolveHeaders(server, config.mcpSecrets),
        redirect: 'error',
        fetch: mcpFetch,
      },
      clientName: 'offshoot',
      initializationOptions: { signal: limit },
      onUncaughtError: (error) =>
        logger.debug({ mcpServer: server.name, problem: describeMcpFailure(error) }, 'an MCP client met an error'),
    })
    const tools = await untilAborted(client.tools(), limit)
    return { client, tools: new Map<string, Tool>(Object.entries(tools)), calls: 0, broken: false }
  } catch (error) {
    await client?.close().catch(() => undefined)
    signal.throwIfAborted()
    const what = timeout.aborted
      ? `did not answer within ${config.MCP_CONNECT_TIMEOUT_MS / 1_000} s`
      : describeMcpFailure(error)
    throw new McpFailure(what, { cause: error })
  }
}

/** Without its cause: it is stored, and a cause may hold addresses, headers and bodies of answers. */
function toolError(message: string): Error {
  return new Error(message)
}

/** A server's own words about a failed call: it may have put one of our headers into them. */
function complaint(text: string, { mcpSecrets }: Pick<Config, 'mcpSecrets'>): string {
  const secrets = [...mcpSecrets.values()].filter(({ length }) => length >= MIN_SECRET_LENGTH)
  return headOf(
    secrets.reduce((scrubbed, secret) => scrubbed.replaceAll(secret, '[secret]'), text),
    MAX_COMPLAINT_LENGTH,
  )
}

/** What a result says that is marked as an error: the server ran the tool, and the tool failed. */
function errorTextOf(result: unknown): string | undefined {
  if (typeof result !== 'object' || result === null || !('isError' in result) || result.isError !== true)
    return undefined
  const content: unknown[] = 'content' in result && Array.isArray(result.content) ? result.content : []
  const texts = content.flatMap((part) =>
    typeof part === 'object' && part !== null && 'text' in part && typeof part.text === 'string' ? [part.text] : [],
  )
  return texts.join('\n') || 'The tool failed without saying why.'
}

/** @throws McpFailure when a header names a variable that is not set */
function resolveHeaders(server: McpServer, secrets: ReadonlyMap<string, string>): Record<string, string> {
  const resolve = (value: string) =>
    value.replaceAll(/\$\{(\w+)\}/g, (_, name: string) => {
      const secret = secrets.get(name)
      if (secret === undefined)
        throw new McpFailure(
          `needs the variable ${name}, which is not set in this worker (headers may name those that begin with MCP_SECRET_)`,
        )
      return secret
    })
  return Object.fromEntries(Object.entries(server.headers ?? {}).map(([name, value]) => [name, resolve(value)]))
}
