// A `fetch` for the built-in provider, on the HTTP client under the built-in one: event streams come with the deltas of a
// text joined (merged-events.ts). The built-in one's requests, responses and streams cost a third of a short model call.
import type { IncomingHttpHeaders } from 'node:http'
import { createBrotliDecompress, createUnzip } from 'node:zlib'
import { Agent, type Dispatcher, getGlobalDispatcher } from 'undici'
import { createEventMerger, type EventMerger } from './merged-events.ts'
import type { MergeWindow } from './merge-window.ts'
import { currentTextTap } from './text-tap.ts'

interface TextPost {
  url: URL
  headers: Record<string, string>
  body: string
  signal: AbortSignal | null
}

type Merge = (send: (text: string) => void) => EventMerger

/** Where a body's bytes go. After `end` or `fail` nothing comes. */
interface Sink {
  write(bytes: Uint8Array): void
  end(): void
  fail(error: unknown): void
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
    const tap = currentTextTap()
    return (await send(post, (onText) => createEventMerger(window, onText, tap))) ?? fetch(input, init)
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

/**
 * Undefined: it is redirected.
 * @throws what `fetch` throws: the signal's reason, or a TypeError whose cause says what went wrong
 */
async function send({ url, headers, body, signal }: TextPost, merge: Merge): Promise<Response | undefined> {
  signal?.throwIfAborted()
  const current = getGlobalDispatcher()
  const dispatcher = current === initialDispatcher ? ownDispatcher : current
  const options = { origin: url.origin, path: url.pathname + url.search, method: 'POST', headers, body } as const
  return new Promise((resolve, reject) =>
    dispatcher.dispatch(options, answerHandler({ signal, merge, resolve, reject })),
  )
}

interface Answer {
  signal: AbortSignal | null
  merge: Merge
  resolve(response: Response | undefined): void
  reject(error: unknown): void
}

function answerHandler({ signal, merge, resolve, reject }: Answer): Dispatcher.DispatchHandler {
  let sink: Sink | undefined
  let request: Dispatcher.DispatchController | undefined
  const abort = (reason: Error) => request?.abort(reason)
  const onAbort = () => abort(new Error('aborted', { cause: signal?.reason }))
  const over = () => signal?.removeEventListener('abort', onAbort)
  return {
    onRequestStart(controller) {
      request = controller
      signal?.addEventListener('abort', onAbort, { once: true })
      if (signal?.aborted === true) onAbort()
    },
    onResponseStart(_controller, status, received, statusText = '') {
      if (status < 200) return
      if (status >= 300 && status < 400) {
        resolve(undefined)
        abort(new Error('redirected'))
        return
      }
      const headers = headersOf(received)
      const respond = (body: ReadableStream | Uint8Array<ArrayBuffer> | null) =>
        resolve(new Response(body, { status, statusText, headers }))
      const isStream =
        status < 300 && headers.get('content-type')?.toLowerCase().startsWith('text/event-stream') === true
      const plain = isStream
        ? mergedBody(merge, respond, () => abort(new Error('nobody reads')))
        : wholeBody(respond, reject)
      sink = decoding(headers, plain, (cause) => {
        plain.fail(failure('terminated', cause, signal))
        abort(new Error('unreadable', { cause }))
      })
    },
    onResponseData: (_controller, bytes) => sink?.write(bytes),
    onResponseEnd() {
      over()
      sink?.end()
    },
    onResponseError(_controller, cause) {
      over()
      if (sink === undefined) reject(failure('fetch failed', cause, signal))
      else sink.fail(failure('terminated', cause, signal))
    },
  }
}

function failure(message: string, cause: unknown, signal: AbortSignal | null): unknown {
  return signal?.aborted === true ? signal.reason : new TypeError(message, { cause })
}

function headersOf(received: IncomingHttpHeaders): Headers {
  const headers = new Headers()
  for (const [name, value = []] of Object.entries(received)) for (const one of [value].flat()) headers.append(name, one)
  return headers
}

/** Some gateways compress whatever is asked for. */
function decoding(headers: Headers, sink: Sink, onUnreadable: (cause: unknown) => void): Sink {
  const encoding = headers.get('content-encoding') ?? 'identity'
  const decoder =
    encoding === 'br' ? createBrotliDecompress() : /^(x-)?gzip$|^deflate$/.test(encoding) ? createUnzip() : undefined
  if (decoder === undefined) return sink
  headers.delete('content-encoding')
  headers.delete('content-length')
  decoder.on('data', sink.write).once('end', sink.end).once('error', onUnreadable)
  return {
    write: (bytes) => void decoder.write(bytes),
    end: () => void decoder.end(),
    fail(error) {
      decoder.destroy()
      sink.fail(error)
    },
  }
}

/** Null: there is none, as with a status that allows none. */
function wholeBody(respond: (body: Uint8Array<ArrayBuffer> | null) => void, fail: (error: unknown) => void): Sink {
  const pieces: Uint8Array[] = []
  return {
    write: (bytes) => void pieces.push(bytes),
    end() {
      const bytes = Buffer.concat(pieces)
      respond(bytes.byteLength === 0 ? null : bytes)
    },
    fail,
  }
}

/** The body's events, deltas joined, from when they come: whoever reads them does not hold up the connection. */
function mergedBody(merge: Merge, respond: (body: ReadableStream) => void, leave: () => void): Sink {
  const encoder = new TextEncoder()
  let over = false
  let controller: ReadableStreamDefaultController<Uint8Array> | undefined
  const merger = merge((text) => controller?.enqueue(encoder.encode(text)))
  respond(
    new ReadableStream<Uint8Array>({
      start: (started) => void (controller = started),
      cancel() {
        over = true
        merger.drop()
        leave()
      },
    }),
  )
  return {
    write: merger.take,
    end() {
      if (over) return
      over = true
      merger.end()
      controller?.close()
    },
    fail(error) {
      if (over) return
      over = true
      merger.end()
      // An error throws away what has not been read yet.
      setImmediate(() => controller?.error(error))
    },
  }
}
