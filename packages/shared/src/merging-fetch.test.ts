import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text as readText } from 'node:stream/consumers'
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import { afterEach, expect, test } from 'vitest'
import { createMergeWindow } from './merge-window.ts'
import { createMergingFetch } from './merging-fetch.ts'

const closers: (() => Promise<void>)[] = []
afterEach(async () => {
  for (const close of closers.splice(0)) await close()
})

const EVENT_STREAM = { 'content-type': 'text/event-stream' }
const window = createMergeWindow({ chunkMs: 60_000 })
const mergingFetch = createMergingFetch(window)
const post = (url: string, more: RequestInit = {}) =>
  mergingFetch(url, { method: 'POST', headers: { 'x-given': 'yes' }, body: '{"größe":1}', ...more })
const delta = (text: string) =>
  `event: response.output_text.delta\ndata: ${JSON.stringify({ type: 'response.output_text.delta', item_id: 'm', delta: text })}\n\n`

async function serve(answer: (request: IncomingMessage, response: ServerResponse) => unknown): Promise<string> {
  const server = createServer((request, response) => void answer(request, response))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  closers.push(async () => {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  })
  // A server that listens on a port has an address with that port.
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

test('an event stream comes with its status, headers and joined deltas, and the server gets what was posted', async () => {
  const seen: unknown[] = []
  const url = await serve(async (request, response) => {
    const { method, url: path, headers } = request
    seen.push(method, path, headers['x-given'], headers['accept-encoding'], await readText(request))
    response.writeHead(200, { ...EVENT_STREAM, 'x-request-id': 'r1', 'set-cookie': ['a=1', 'b=2'] })
    response.end(delta('one ') + delta('two ') + delta('three'))
  })
  const response = await post(`${url}/v1/responses?a=b`)
  expect([response.status, response.ok, response.headers.get('x-request-id')]).toEqual([200, true, 'r1'])
  expect(response.headers.getSetCookie()).toEqual(['a=1', 'b=2'])
  expect(await response.text()).toBe(delta('one ') + delta('two three'))
  expect(seen).toEqual(['POST', '/v1/responses?a=b', 'yes', 'identity', '{"größe":1}'])
})

test.each([
  [401, 'application/json', '{"error":"no"}'],
  [200, 'application/json', '{"ok":true}'],
  [204, 'text/plain', ''],
  [500, 'text/event-stream', delta('a') + delta('b') + delta('c')],
])('an answer of %i that is %s comes as it is', async (status, type, body) => {
  const url = await serve((_request, response) => response.writeHead(status, { 'content-type': type }).end(body))
  const response = await post(url)
  expect([response.status, response.headers.get('content-type'), await response.text()]).toEqual([status, type, body])
})

test.each([
  ['gzip', gzipSync],
  ['br', brotliCompressSync],
  ['deflate', deflateSync],
])('what a gateway compresses with %s all the same is read, an error too', async (encoding, compress) => {
  const url = await serve((request, response) => {
    const error = request.url === '/error'
    const type = error ? 'application/json' : 'text/event-stream'
    response.writeHead(error ? 400 : 200, { 'content-type': type, 'content-encoding': encoding })
    response.end(compress(error ? '{"error":"größe"}' : delta('one ') + delta('two ') + delta('three')))
  })
  expect(await (await post(url)).text()).toBe(delta('one ') + delta('two three'))
  expect(await (await post(`${url}/error`)).json()).toEqual({ error: 'größe' })
})

test('what is redirected, has another body, or is no post goes to the built-in fetch', async () => {
  const url = await serve(async (request, response) => {
    const body = await readText(request)
    if (request.url === '/moved') return response.writeHead(307, { location: '/there' }).end('moved')
    return response.end(`${request.method} ${request.url} ${body}`)
  })
  const answers = [
    await post(`${url}/moved`),
    await mergingFetch(new URL(`${url}/a`), { method: 'POST', body: 'x' }),
    await mergingFetch(`${url}/b`, { method: 'POST', body: new TextEncoder().encode('y') }),
    await mergingFetch(`${url}/c`),
    await post(`${url}/d`, { headers: new Headers() }),
  ]
  expect(await Promise.all(answers.map(async (answer) => answer.text()))).toEqual([
    'POST /there {"größe":1}',
    'POST /a x',
    'POST /b y',
    'GET /c ',
    'POST /d {"größe":1}',
  ])
})

test('what goes wrong is thrown as by fetch: a TypeError with its cause', async () => {
  const url = await serve((request) => request.socket.destroy())
  await expect(post(url)).rejects.toMatchObject({
    name: 'TypeError',
    message: 'fetch failed',
    cause: { code: 'UND_ERR_SOCKET' },
  })
  await expect(post('http://127.0.0.1:1')).rejects.toMatchObject({
    message: 'fetch failed',
    cause: { code: 'ECONNREFUSED' },
  })
  await expect(post('http://:x')).rejects.toThrow(TypeError)
})

test('a connection that breaks in mid-stream gives what was held, and then the error', async () => {
  const url = await serve((_request, response) => {
    response.writeHead(200, EVENT_STREAM).write(delta('a') + delta('b') + delta('c'))
    setImmediate(() => response.destroy())
  })
  const reader = (await post(url)).body?.pipeThrough(new TextDecoderStream()).getReader()
  let got = ''
  const reading = (async () => {
    for (;;) got += (await reader?.read())?.value ?? ''
  })()
  await expect(reading).rejects.toMatchObject({
    name: 'TypeError',
    message: 'terminated',
    cause: { code: 'UND_ERR_SOCKET' },
  })
  expect(got).toBe(delta('a') + delta('bc'))
})

test('a compressed body that is broken, or breaks, is an error, and its connection is closed', async () => {
  const closed = Promise.withResolvers<void>()
  const url = await serve((request, response) => {
    response.writeHead(200, { ...EVENT_STREAM, 'content-encoding': 'gzip' })
    if (request.url === '/odd') {
      request.socket.once('close', () => closed.resolve())
      return response.write('this is no gzip')
    }
    response.write(gzipSync(delta('a')).subarray(0, -4))
    return setImmediate(() => response.destroy())
  })
  const terminated = { name: 'TypeError', message: 'terminated' }
  await expect((await post(`${url}/odd`)).text()).rejects.toMatchObject({
    ...terminated,
    cause: { code: 'Z_DATA_ERROR' },
  })
  await closed.promise
  await expect((await post(`${url}/breaks`)).text()).rejects.toMatchObject(terminated)
})

test('an abort is thrown with its own reason, before the call, before the headers and in mid-stream, and closes the connection', async () => {
  const closed: string[] = []
  const reached = Promise.withResolvers<void>()
  const url = await serve((request, response) => {
    request.socket.once('close', () => void closed.push(request.url ?? ''))
    if (request.url === '/silent') return reached.resolve()
    return response.writeHead(200, EVENT_STREAM).write(delta('a'))
  })
  const reason = new Error('enough')
  await expect(post(url, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason)

  const silent = new AbortController()
  const waiting = post(`${url}/silent`, { signal: silent.signal })
  await reached.promise
  silent.abort(reason)
  await expect(waiting).rejects.toBe(reason)

  const controller = new AbortController()
  const reader = (await post(`${url}/stream`, { signal: controller.signal })).body?.getReader()
  expect(new TextDecoder().decode((await reader?.read())?.value)).toBe(delta('a'))
  controller.abort(reason)
  await expect(reader?.read()).rejects.toBe(reason)
  await expect.poll(() => closed).toEqual(['/silent', '/stream'])
})

test('a reader that leaves closes the connection', async () => {
  const closed = Promise.withResolvers<void>()
  const url = await serve((request, response) => {
    request.socket.once('close', () => closed.resolve())
    response.writeHead(200, EVENT_STREAM).write(delta('a'))
  })
  await (await post(url)).body?.cancel('enough')
  await expect(closed.promise).resolves.toBeUndefined()
})
