// Which tools a job may use: those of the registry by name, and those of MCP servers, whose names are known only once a
// server was asked, as `<server>_<tool>`, or all of a server's as `<server>_*`. A server's name has no underscore.
import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import type { Bot, McpServer } from './bot.ts'

export interface ToolGrant {
  /** Tools of the registry, by name. */
  native: readonly string[]
  /** `<server>_<tool>` or `<server>_*`. */
  mcp: readonly string[]
  servers: readonly McpServer[]
}

type BotTools = Pick<Bot, 'toolNames' | 'mcpServers'>

/** What providers take as the name of a tool. */
const MAX_NAME_LENGTH = 64

/** The name under which a model knows a server's tool. What providers do not take is replaced, with a hash for the loss. */
export function mcpToolName(server: string, tool: string): string {
  const name = `${server}_${tool}`
  if (name.length <= MAX_NAME_LENGTH && /^[\w-]+$/.test(name)) return name
  const hash = createHash('sha256').update(name).digest('hex').slice(0, 8)
  return `${name.replaceAll(/[^\w-]/g, '_').slice(0, MAX_NAME_LENGTH - 9)}_${hash}`
}

/** All that a bot may use. */
export function grantOfBot({ toolNames, mcpServers }: BotTools): ToolGrant {
  const mcp = mcpServers.flatMap(({ name, tools }) => tools?.map((tool) => mcpToolName(name, tool)) ?? [`${name}_*`])
  return { native: toolNames, mcp: mcp.filter((name) => !toolNames.includes(name)), servers: mcpServers }
}

/** What stands in a job's `toolNames`: a name that its bot names itself is one of the registry. */
export function grantOfJob({ toolNames, mcpServers }: BotTools, granted: readonly string[]): ToolGrant {
  return {
    native: granted.filter((name) => toolNames.includes(name)),
    mcp: granted.filter((name) => !toolNames.includes(name)),
    servers: mcpServers,
  }
}

export function grantedNames({ native, mcp }: ToolGrant): string[] {
  return [...native, ...mcp]
}

/** Whether the entries allow a tool (`<server>_<tool>`), or all tools of a server (`<server>_*`). */
export function allowsMcpTool(entries: readonly string[], name: string): boolean {
  return entries.includes(name) || (name.includes('_') && entries.includes(`${name.split('_', 1)[0]}_*`))
}

/**
 * What of a bot's tools a job of it gets: those that its parent has, too, and that `filter` names, if it names any. A
 * server counts as the parent's only with the same name, address and headers. `unknown`: what `filter` names besides.
 */
export function narrowGrant(
  bot: BotTools,
  parent: ToolGrant | undefined,
  filter: readonly string[],
): { grant: ToolGrant; unknown: string[] } {
  const own = grantOfBot(bot)
  const available = parent === undefined ? own : intersect(own, parent)
  if (filter.length === 0) return { grant: available, unknown: [] }
  const { native, mcp, servers } = available
  // A name of the bot's own tools is never one of a server's.
  const fromServers = filter.filter((name) => !bot.toolNames.includes(name))
  return {
    grant: { native: native.filter((name) => filter.includes(name)), mcp: common(mcp, fromServers), servers },
    unknown: filter.filter(
      (name) => !native.includes(name) && !(fromServers.includes(name) && common(mcp, [name]).length > 0),
    ),
  }
}

function intersect(own: ToolGrant, parent: ToolGrant): ToolGrant {
  const servers = own.servers.filter((server) => parent.servers.some((other) => isSameServer(server, other)))
  const isShared = (entry: string) => servers.some(({ name }) => entry.startsWith(`${name}_`))
  return {
    native: own.native.filter((name) => parent.native.includes(name)),
    mcp: common(own.mcp.filter(isShared), parent.mcp),
    servers,
  }
}

/** What both lists of entries allow. */
function common(some: readonly string[], others: readonly string[]): string[] {
  return [
    ...new Set([
      ...some.filter((name) => allowsMcpTool(others, name)),
      ...others.filter((name) => allowsMcpTool(some, name)),
    ]),
  ]
}

function isSameServer(one: McpServer, other: McpServer): boolean {
  const { name, url, headers } = one
  return isDeepStrictEqual({ name, url, headers }, { name: other.name, url: other.url, headers: other.headers })
}
