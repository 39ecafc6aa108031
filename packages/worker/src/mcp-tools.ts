// The tools that a job has of its bot's MCP servers. The servers are asked once an attempt, and only by one that may call
// the model; a server that does not answer costs the job its tools, not its life.
import { jsonSchema, type Tool, type ToolSet } from 'ai'
import { allowsMcpTool, mcpToolName, type ToolGrant } from '@offshoot/shared/contracts/tool-grant'
import { findAiTool } from '@offshoot/shared/tools/registry'
import { connectMcpServer, type McpConnection, type McpConnectionOptions } from './mcp-connection.ts'
import { describeMcpFailure } from './mcp-errors.ts'

export interface McpTools {
  tools: ToolSet
  /** What went wrong, a sentence for each, as the job's history has it. */
  problems: { server: string; problem: string }[]
  /** Servers that did not answer. */
  unavailable: string[]
  /** Tools that the job was given by name and that their server, which answered, does not have. */
  missing: string[]
}

export interface McpSession {
  /** Asks the servers, once. @throws the signal's reason when the attempt is stopped meanwhile */
  open(grant: ToolGrant): Promise<McpTools>
  /** Closes every connection. To be called at the end of the attempt, opened or not. */
  close(): Promise<void>
}

/** Tools of one server that a model is shown. */
const MAX_TOOLS = 128

export function createMcpSession(options: Omit<McpConnectionOptions, 'server'>): McpSession {
  const connections: McpConnection[] = []
  let opened: Promise<McpTools> | undefined

  async function open(grant: ToolGrant): Promise<McpTools> {
    const servers = grant.servers.filter(({ name }) => grant.mcp.some((entry) => entry.startsWith(`${name}_`)))
    const parts = await Promise.all(
      servers.map(async (server) => {
        const connection = connectMcpServer({ ...options, server })
        connections.push(connection)
        return openServer(server.name, connection, grant)
      }),
    )
    return {
      tools: Object.assign({}, ...parts.map((part) => part.tools)),
      problems: parts.flatMap((part) => part.problems),
      unavailable: parts.flatMap((part) => part.unavailable),
      missing: parts.flatMap((part) => part.missing),
    }
  }

  async function openServer(server: string, connection: McpConnection, grant: ToolGrant): Promise<McpTools> {
    let offered: ReadonlyMap<string, Tool>
    try {
      offered = await connection.tools()
    } catch (error) {
      options.signal.throwIfAborted()
      return {
        tools: {},
        problems: [{ server, problem: describeMcpFailure(error) }],
        unavailable: [server],
        missing: [],
      }
    }
    const allowed = [...offered].flatMap(([toolName, tool]): [string, Tool][] => {
      const name = mcpToolName(server, toolName)
      return allowsMcpTool(grant.mcp, name) ? [[name, callingTool(connection, toolName, tool)]] : []
    })
    const free = allowed.filter(([name]) => findAiTool(name) === undefined)
    const taken = allowed.filter(([name]) => findAiTool(name) !== undefined).map(([name]) => name)
    const missing = grant.mcp.filter(
      (name) => name.startsWith(`${server}_`) && !name.endsWith('_*') && !allowed.some(([each]) => each === name),
    )
    const problems = [
      ...(taken.length === 0 ? [] : [`left out, since tools of our own have these names: ${taken.join(', ')}`]),
      ...(missing.length === 0 ? [] : [`does not offer ${missing.join(', ')}`]),
      ...(free.length <= MAX_TOOLS ? [] : [`offers ${free.length} tools; only the first ${MAX_TOOLS} are used`]),
    ]
    return {
      tools: Object.fromEntries(free.slice(0, MAX_TOOLS)),
      problems: problems.map((problem) => ({ server, problem })),
      unavailable: [],
      missing,
    }
  }

  return {
    open: (grant) => (opened ??= open(grant)),
    async close() {
      await Promise.all(connections.map((connection) => connection.close()))
    },
  }
}

/** The server's tool as one of ours: what is "dynamic" to the SDK would look different live and in the record. */
function callingTool(connection: McpConnection, toolName: string, tool: Tool): Tool {
  const { description, inputSchema, toModelOutput } = tool
  return {
    ...(description === undefined ? {} : { description }),
    ...(toModelOutput === undefined ? {} : { toModelOutput }),
    inputSchema,
    execute: (input: unknown, { abortSignal }: { abortSignal?: AbortSignal }) =>
      connection.call(toolName, input, abortSignal),
  }
}

/** Stands for a tool that a stored call names and that is not there now: the call is answered, and no new one made. */
export function absentTool(name: string, unavailable: readonly string[]): Tool {
  const server = name.split('_', 1)[0] ?? ''
  return {
    inputSchema: jsonSchema({ type: 'object' }),
    execute: () => {
      throw new Error(
        unavailable.includes(server)
          ? `The MCP server "${server}" does not answer. The call of ${name} was not made.`
          : `The MCP server "${server}" does not offer ${name} any more. The call was not made.`,
      )
    },
  }
}
