// A `fetch` for the built-in provider, on the HTTP client under the built-in one: event streams come with the deltas of a
// text joined (merged-events.ts). The built-in one's requests, responses and streams cost a third of a short model call.
import { pipeline, type Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { createBrotliDecompress, createUnzip } from 'node:zlib'
import { Agent, type Dispatcher, getGlobalDispatcher, request } from 'undici'
import { createEventMerger, type EventMerger } from './merged-events.ts'
import type { MergeWindow } from './merge-window.ts'

interface TextPost {
  url: URL
  headers: Record<string, string>
  body: string
  signal: AbortSignal | null
}

/** Where nobody has set a global one: as the built-in `fetch`, without HTTP/2, whose connections many calls would share. */
const initialDispatcher = getGlobalDispatcher()
const ownDispatcher = initialDispatcher instanceof Agent ? new Agent({ allowH2: false }) : initialDispatcher

/**
 * The same as `fetch` for what a provider does, which posts a text. Everything else, and what is redirected, goes to `fetch`.
 * Proxies and time limits are those of undici's global dispatcher, as there.
 */
export function createMergingFetch(window: MergeWindow): typeof fetch {
  return async (input, init) => {
    const post = textPost(input, init)
    if (post === undefined) return fetch(input, init)
    const { statusCode: status, statusText, headers: received, body } = await send(post)
    if (status >= 300 && status < 400) {
      await body.dump()
      return fetch(input, init)
    }
    const headers = headersOf(received)
    const source = decoded(body, headers)
    const isStream = status < 300 && headers.get('content-type')?.toLowerCase().startsWith('text/event-stream') === true
    const answer = isStream ? mergedBody(source, window, post.signal) : await wholeBody(source, post.signal)
    return new Response(answer, { status, statusText, headers })
  }
}

/** What is to be posted, where it is a text and nothing else is asked for. */
function textPost(input: Parameters<typeof fetch>[0], init: RequestInit = {}): TextPost | undefined {
  const { method, headers = {}, body, signal = null, ...more } = init
  if (method !== 'POST' || typeof body !== 'string' || Object.keys(more).length > 0) return undefined
  if (typeof input !== 'string' || headers instanceof Headers || Array.isArray(headers)) return undefined
  const url = new URL(input)
  if (!url.protocol.startsWith('http') || url.username !== '') return undefined
  // Without a word of it a server may compress.
  return { url, headers: { 'accept-encoding': 'identity', ...(headers as Record<string, string>) }, body, signal }
}

/** @throws what `fetch` throws: the signal's reason, or a TypeError whose cause says what went wrong */
async function send({ url, ...post }: TextPost): Promise<Dispatcher.ResponseData> {
  try {
    const current = getGlobalDispatcher()
    const dispatcher = current === initialDispatcher ? ownDispatcher : current
    return await request(url, { method: 'POST', ...post, dispatcher })
  } catch (cause) {
    throw failure('fetch failed', cause, post.signal)
  }
}

function failure(message: string, cause: unknown, signal: AbortSignal | null): unknown {
  return signal?.aborted === true ? signal.reason : new TypeError(message, { cause })
}

function headersOf(received: Dispatcher.ResponseData['headers']): Headers {
  const headers = new Headers()
  for (const [name, value = []] of Object.entries(received)) for (const one of [value].flat()) headers.append(name, one)
  return headers
}

/** Some gateways compress whatever is asked for. */
function decoded(body: Readable, headers: Headers): Readable {
  const encoding = headers.get('content-encoding') ?? 'identity'
  const decoder =
    encoding === 'br' ? createBrotliDecompress() : /^(x-)?gzip$|^deflate$/.test(encoding) ? createUnzip() : undefined
  if (decoder === undefined) return body
  headers.delete('content-encoding')
  headers.delete('content-length')
  // What breaks the body breaks what is read of it.
  return pipeline(body, decoder, () => undefined)
}

/** Null: there is none, as with a status that allows none. */
async function wholeBody(body: Readable, signal: AbortSignal | null): Promise<Uint8Array | null> {
  try {
    const bytes = await buffer(body)
    return bytes.byteLength === 0 ? null : bytes
  } catch (cause) {
    throw failure('terminated', cause, signal)
  }
}

/** The body's events, deltas joined, from when they come: whoever reads them does not hold up the connection. */
function mergedBody(body: Readable, window: MergeWindow, signal: AbortSignal | null): ReadableStream<Uint8Array> {
  const encoder = new TextEncoder()
  let merger: EventMerger | undefined
  let over = false
  return new ReadableStream({
    start(controller) {
      const events = createEventMerger(window, (text) => controller.enqueue(encoder.encode(text)))
      merger = events
      body.on('data', events.take)
      body.once('end', () => {
        over = true
        events.end()
        controller.close()
      })
      body.on('error', (cause) => {
        if (over) return
        over = true
        events.end()
        // An error throws away what has not been read yet.
        setImmediate(() => controller.error(failure('terminated', cause, signal)))
      })
    },
    cancel() {
      over = true
      merger?.drop()
      body.destroy()
    },
  })
}
