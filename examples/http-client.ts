// Offshoot over HTTP, from any program. docs/guide/http-api.md explains each function.
import { DefaultChatTransport, readUIMessageStream, type UIMessage } from 'ai'
import { z } from 'zod'

export interface Api {
  /** Such as http://127.0.0.1:3000 */
  url: string
  key: string
}

const outcomeSchema = z.object({ state: z.string(), result: z.string().nullish() })
const problemSchema = z.object({ code: z.string(), detail: z.string() })

export async function spawnAndWait({ url, key }: Api, message: string): Promise<string> {
  const response = await fetch(`${url}/v1/agents?wait=60`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ bot: { botGroup: 'forge', botHandle: 'researcher' }, message }),
  })
  if (!response.ok) {
    const { code, detail } = problemSchema.parse(await response.json())
    throw new Error(`${code}: ${detail}`)
  }
  const { state, result } = outcomeSchema.parse(await response.json())
  // 202: it runs on, and the address in the Location header tells of it.
  return response.status === 202 ? `still ${state}: ${response.headers.get('location')}` : (result ?? state)
}

export async function spawnOnce({ url, key }: Api, orderId: string): Promise<string> {
  const response = await fetch(`${url}/v1/agents`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${key}`,
      'content-type': 'application/json',
      'idempotency-key': `order-${orderId}`,
    },
    body: JSON.stringify({
      bot: { botGroup: 'forge', botHandle: 'researcher' },
      message: `Look into order ${orderId}.`,
      mode: 'async',
    }),
  })
  return z.object({ jobId: z.string() }).parse(await response.json()).jobId
}

export async function watch({ url, key }: Api, jobId: string, show: (message: UIMessage) => void): Promise<void> {
  const transport = new DefaultChatTransport({
    headers: { authorization: `Bearer ${key}` },
    prepareReconnectToStreamRequest: ({ id }) => ({ api: `${url}/v1/agents/${id}/stream` }),
  })
  const stream = await transport.reconnectToStream({ chatId: jobId })
  if (stream === null) return
  for await (const message of readUIMessageStream({ stream })) show(message)
}

export async function beginConvo({ url, key }: Api): Promise<string> {
  const response = await fetch(`${url}/v1/convos`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ bot: { botGroup: 'forge', botHandle: 'planner' } }),
  })
  return z.object({ convoId: z.string() }).parse(await response.json()).convoId
}

/** For useChat: `useChat({ id: convoId, transport: convoTransport(api), resume: true })`. */
export function convoTransport({ url, key }: Api): DefaultChatTransport<UIMessage> {
  return new DefaultChatTransport({
    headers: { authorization: `Bearer ${key}` },
    prepareSendMessagesRequest: ({ id, messages, trigger }) => ({
      api: `${url}/v1/convos/${id}/messages`,
      body: { messages: messages.slice(-1), trigger },
    }),
    prepareReconnectToStreamRequest: ({ id }) => ({ api: `${url}/v1/convos/${id}/stream` }),
  })
}
