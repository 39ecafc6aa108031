// The one place that understands the errors of MCP servers and of @ai-sdk/mcp. What becomes of them may be read by users
// and models: no address, no header, no body of an answer.
import { MCPClientError } from '@ai-sdk/mcp'

/** What a server did wrong, as the end of a sentence that begins with its name: "did not answer within 10 s". */
export class McpFailure extends Error {
  override name = 'McpFailure'
}

/** The same for whatever was thrown. */
export function describeMcpFailure(error: unknown): string {
  const causes = causesOf(error)
  const own = causes.find((cause) => cause instanceof McpFailure)
  if (own !== undefined) return own.message
  for (const cause of causes) {
    if (MCPClientError.isInstance(cause) && cause.statusCode !== undefined && cause.statusCode >= 400)
      return `answered with status ${cause.statusCode}`
    if (MCPClientError.isInstance(cause) && cause.code !== undefined) return `answered with error ${cause.code}`
    const code = networkCode(cause)
    if (code !== undefined) return `cannot be reached (${code})`
  }
  const says = (...messages: string[]) => causes.some(({ message }) => messages.includes(message))
  if (says('terminated', 'Connection closed')) return 'closed the connection'
  if (says('unexpected redirect')) return 'answered with a redirect, which is not followed'
  if (says('fetch failed')) return 'cannot be reached'
  return 'answered something that is not MCP'
}

/** Whether the connection is of no use any more: it broke, or its session is gone. */
export function breaksConnection(error: unknown): boolean {
  return !causesOf(error).some(
    (cause) =>
      MCPClientError.isInstance(cause) &&
      (cause.code !== undefined || (cause.statusCode !== undefined && cause.statusCode !== 404)),
  )
}

/** The server's own words about a call that it refused, such as one with a wrong input; undefined: it said nothing of the kind. */
export function refusalOf(error: unknown): string | undefined {
  return MCPClientError.isInstance(error) && error.code !== undefined ? error.message : undefined
}

function causesOf(error: unknown): Error[] {
  const causes: Error[] = []
  for (let at: unknown = error; at instanceof Error && causes.length < 5; at = at.cause) causes.push(at)
  return causes
}

/** Such as ECONNREFUSED or UND_ERR_SOCKET. */
function networkCode(error: Error): string | undefined {
  const code = 'code' in error ? error.code : undefined
  return typeof code === 'string' && /^[A-Z][A-Z0-9_]+$/.test(code) ? code : undefined
}
