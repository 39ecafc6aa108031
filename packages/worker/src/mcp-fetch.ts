// The HTTP of one MCP server's client, with what @ai-sdk/mcp leaves open: an answer that breaks off would leave its call
// waiting, a call that is given up would run on, closing has no limit, and an answer may be as long as the server likes.
import { AsyncLocalStorage } from 'node:async_hooks'
import { z } from 'zod'
import { McpFailure } from './mcp-errors.ts'

/** Bytes of one answer. What reaches the model is cut much sooner; this is what the process must hold. */
export const MAX_ANSWER_BYTES = 10_000_000
/** What ending a session, or telling that a call is given up, may take. */
const GOODBYE_MS = 2_000
/** What the client may take for an answer that has arrived in full. */
const READING_MS = 250

/** A call of a tool; it may take several requests, one after the other. */
interface Call {
  broken: AbortController
  requests: number
}

const calls = new AsyncLocalStorage<Call>()

/** Runs one call of a tool. `signal` reaches the request; it is aborted, too, when the answer can come no more. */
export async function callOverHttp<T>(
  signal: AbortSignal | undefined,
  call: (signal: AbortSignal) => PromiseLike<T>,
): Promise<T> {
  const broken = new AbortController()
  try {
    return await calls.run({ broken, requests: 0 }, () =>
      call(signal === undefined ? broken.signal : AbortSignal.any([signal, broken.signal])),
    )
  } catch (error) {
    if (broken.signal.aborted && signal?.aborted !== true) throw broken.signal.reason
    throw error
  }
}

export async function mcpFetch(input: string | URL | Request, init: RequestInit = {}): Promise<Response> {
  // The stream on which servers notify: the client reads no notifications.
  if (init.method === 'GET') return new Response(null, { status: 405 })
  if (init.method === 'DELETE') return fetch(input, { ...init, signal: AbortSignal.timeout(GOODBYE_MS) })
  const answered = cancelWhenAborted(input, init)
  try {
    const response = await fetch(input, init)
    if (response.body !== null) return watchBody(response, response.body, answered)
    answered()
    return response
  } catch (error) {
    answered()
    throw error
  }
}

/** Counts an answer's bytes, and ends the call once nothing more can come. */
function watchBody(response: Response, body: ReadableStream<Uint8Array>, answered: () => void): Response {
  const call = calls.getStore() ?? { broken: new AbortController(), requests: 0 }
  const request = (call.requests += 1)
  let bytes = 0
  const counter = new TransformStream<Uint8Array, Uint8Array>({
    transform(chunk, controller) {
      bytes += chunk.byteLength
      if (bytes > MAX_ANSWER_BYTES) throw new McpFailure(`answered with more than ${MAX_ANSWER_BYTES / 1_000_000} MB`)
      controller.enqueue(chunk)
    },
  })
  const end = (error?: unknown) => {
    answered()
    setTimeout(() => {
      if (call.requests === request) call.broken.abort(error ?? new McpFailure('ended its answer before the result'))
    }, READING_MS).unref()
  }
  body.pipeTo(counter.writable).then(() => end(), end)
  return new Response(counter.readable, response)
}

const callSchema = z.object({ id: z.number(), method: z.literal('tools/call') })

/**
 * In a session a closed connection does not end a call: the server is told when ours is given up. To be called back when
 * the answer is there.
 */
function cancelWhenAborted(input: string | URL | Request, init: RequestInit): () => void {
  const { signal } = init
  const call = callSchema.safeParse(typeof init.body === 'string' ? JSON.parse(init.body) : undefined)
  if (!call.success || !signal || !new Headers(init.headers).has('mcp-session-id')) return () => undefined
  const cancel = () => {
    const params = { requestId: call.data.id }
    const body = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/cancelled', params })
    void fetch(input, { ...init, body, signal: AbortSignal.timeout(GOODBYE_MS) }).catch(() => undefined)
  }
  signal.addEventListener('abort', cancel, { once: true })
  return () => signal.removeEventListener('abort', cancel)
}
