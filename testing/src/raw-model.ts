// A model that speaks OpenAI's Responses protocol event by event, as a test's script says: for streams that break, fall
// silent, end without a finish or send an error, for answers that wait for the test, and to see what our side does with
// the connection.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text as readText } from 'node:stream/consumers'

export interface RawRequest {
  /** The body as the provider package sent it. */
  body: Record<string, unknown>
  /** When the other side closed the connection before the answer was over (`performance.now()`). */
  closedByPeerAt?: number
  /** Our script has cut the connection. */
  reset?: true
}

export interface RawReply {
  text(delta: string): void
  call(name: string, input: unknown, callId: string): void
  /** Ends the answer as it should: completed, or incomplete for a reason. */
  finish(how?: { incomplete?: 'max_output_tokens' | 'content_filter'; usage?: { input: number; output: number } }): void
  /** Sends one event of the protocol. */
  event(event: { type: string } & Record<string, unknown>): void
  /** Sends an SSE comment, as providers and proxies do to keep a connection open: it carries no event. */
  comment(text: string): void
  /** Ends the body cleanly, with nothing that says so. */
  end(): void
  /** Cuts the connection with a TCP reset. */
  reset(): void
  status(status: number, error: { message: string; code?: string }, headers?: Record<string, string>): void
  /** Resolves when the connection is closed, by whomever. */
  closed: Promise<void>
}

/** Which step of a job with one tool call a step this call makes, from 0. */
export function stepOf({ body }: RawRequest): number {
  const input: { type?: string }[] = Array.isArray(body['input']) ? body['input'] : []
  return input.filter((item) => item.type === 'function_call_output').length
}

export type RawScript = (reply: RawReply, request: RawRequest) => void | Promise<void>

export interface RawModel {
  /** To be set as `OPENAI_BASE_URL`. */
  baseUrl: string
  /** The n-th call with that last user message is answered by the n-th script; later ones by the last one. A message that no text names is looked for among the patterns, the newest first. */
  answer(message: string | RegExp, ...scripts: RawScript[]): void
  /** What answers the calls with any other last user message. */
  answerOthers(script: RawScript): void
  /** The calls with that last user message, or all. */
  requests(message?: string): RawRequest[]
  stop(): Promise<void>
}

export async function startRawModel(): Promise<RawModel> {
  const scripts = new Map<string | RegExp, RawScript[]>()
  let others: RawScript | undefined
  const log: { message: string; request: RawRequest }[] = []
  const requests = (message?: string) =>
    log.filter((entry) => message === undefined || entry.message === message).map(({ request }) => request)

  async function handle(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const body: Record<string, unknown> = JSON.parse(await readText(incoming))
    const request: RawRequest = { body }
    const message = lastUserText(body)
    log.push({ message, request })
    response.once('close', () => {
      if (!response.writableEnded && !request.reset) request.closedByPeerAt = performance.now()
    })
    const pattern = scripts.has(message) ? message : [...scripts.keys()].findLast((key) => isMatch(key, message))
    const list = scripts.get(pattern ?? message) ?? []
    const nth = log.filter((entry) => entry.message === pattern || isMatch(pattern, entry.message)).length
    const script = list[Math.min(nth, list.length) - 1] ?? others
    const reply = createReply(response, request)
    if (script === undefined) reply.status(404, { message: `nothing is scripted for "${message}"` })
    else await script(reply, request)
  }

  const server = createServer((incoming, response) => {
    handle(incoming, response).catch((error: unknown) => response.destroy(error instanceof Error ? error : undefined))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  // A server that listens on a port has an address with that port.
  const { port } = server.address() as AddressInfo
  return {
    baseUrl: `http://127.0.0.1:${port}/v1`,
    answer: (message, ...list) => void scripts.set(message, list),
    answerOthers: (script) => void (others = script),
    requests,
    async stop() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

function isMatch(key: string | RegExp | undefined, message: string): boolean {
  return key instanceof RegExp && key.test(message)
}

/** Says a text and ends. */
export function says(text: string): RawScript {
  return (reply) => {
    reply.text(text)
    reply.finish()
  }
}

/** Calls one tool and ends. */
export function callsTool(name: string, input: unknown, callId = `call_${name}`): RawScript {
  return (reply) => {
    reply.call(name, input, callId)
    reply.finish()
  }
}

/** Answers nothing, for as long as the other side keeps the connection. */
export const staysSilent: RawScript = () => undefined

/** Says one word after the other, for as long as the other side keeps the connection. */
export const ticking: RawScript = async (reply) => {
  const timer = setInterval(() => reply.text('tick '), 50)
  await reply.closed
  clearInterval(timer)
}

function createReply(response: ServerResponse, request: RawRequest): RawReply {
  let started = false
  let items = 0
  let openText: { id: string; text: string } | undefined

  function write(lines: string): void {
    if (!started) {
      started = true
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      const created = { id: 'resp_1', created_at: 1_764_500_000, model: 'raw', service_tier: null }
      event({ type: 'response.created', response: created })
    }
    if (!response.writableEnded) response.write(`${lines}\n\n`)
  }

  function event(data: { type: string } & Record<string, unknown>): void {
    write(`event: ${data.type}\ndata: ${JSON.stringify(data)}`)
  }

  function closeText(): void {
    if (openText === undefined) return
    event({ type: 'response.output_item.done', output_index: items - 1, item: { type: 'message', id: openText.id } })
    openText = undefined
  }

  return {
    event,
    comment: (text) => write(`: ${text}`),
    text(delta) {
      if (openText === undefined) {
        openText = { id: `msg_${items}`, text: '' }
        event({ type: 'response.output_item.added', output_index: items, item: { type: 'message', id: openText.id } })
        items += 1
      }
      event({ type: 'response.output_text.delta', item_id: openText.id, delta })
    },
    call(name, input, callId) {
      closeText()
      const item = { type: 'function_call', id: `fc_${items}`, call_id: callId, name }
      const args = JSON.stringify(input)
      event({ type: 'response.output_item.added', output_index: items, item: { ...item, arguments: '' } })
      event({ type: 'response.function_call_arguments.delta', item_id: item.id, output_index: items, delta: args })
      event({
        type: 'response.output_item.done',
        output_index: items,
        item: { ...item, arguments: args, status: 'completed' },
      })
      items += 1
    },
    finish({ incomplete, usage = { input: 10, output: 5 } } = {}) {
      closeText()
      event({
        type: incomplete === undefined ? 'response.completed' : 'response.incomplete',
        response: {
          incomplete_details: incomplete === undefined ? null : { reason: incomplete },
          usage: { input_tokens: usage.input, output_tokens: usage.output },
        },
      })
      response.end()
    },
    end: () => void response.end(),
    reset() {
      request.reset = true
      response.socket?.resetAndDestroy()
    },
    status(status, error, headers = {}) {
      response.writeHead(status, { 'content-type': 'application/json', ...headers })
      response.end(JSON.stringify({ error }))
    },
    closed: new Promise((resolve) => void response.once('close', resolve)),
  }
}

function lastUserText({ input }: Record<string, unknown>): string {
  const items: { role?: string; content?: unknown }[] = Array.isArray(input) ? input : []
  const content = items.findLast((item) => item.role === 'user')?.content
  if (typeof content === 'string') return content
  const parts: { text?: string }[] = Array.isArray(content) ? content : []
  return parts.map((part) => part.text ?? '').join('')
}
