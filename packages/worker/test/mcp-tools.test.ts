// Tools of MCP servers: a real server in a process of its own, and what becomes of a job when a server is not what it
// should be.
import { jsonSchema, tool } from 'ai'
import { createServer, type RequestListener, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { McpServer } from '@offshoot/shared/contracts/bot'
import { decodeStored } from '@offshoot/shared/db/stored-value'
import { abort, answerOf, endOf, runRoot, type SpawnMore, spawnRoot } from '@offshoot/testing/agents'
import { type McpProcess, startMcpProcess } from '@offshoot/testing/mcp-process'
import { redisTexts } from '@offshoot/testing/redis-texts'
import { callsTool, type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { portToReturnTo } from '@offshoot/testing/port-to-return-to'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const TOKEN = 'the-token-that-nobody-may-see'
const CONNECT_TIMEOUT_MS = 1_000
const TOOL_TIMEOUT_MS = 1_500

let raw: RawModel
let stage: WorkerStage
let mcp: McpProcess

beforeAll(async () => {
  raw = await startRawModel()
  mcp = await startMcpProcess({ token: TOKEN })
  stage = await openWorkerStage(raw.baseUrl, {
    environment: {
      MCP_CONNECT_TIMEOUT_MS: String(CONNECT_TIMEOUT_MS),
      TOOL_TIMEOUT_MS: String(TOOL_TIMEOUT_MS),
      MCP_SECRET_KIT: TOKEN,
    },
    extensions: {
      tools: [
        {
          id: 'twin_huge',
          group: 'test',
          userSelect: true,
          tool: tool({ inputSchema: jsonSchema({ type: 'object' }), execute: () => 'the tool of our own' }),
        },
      ],
    },
  })
  await giveServers('bot', [kit()])
})

afterAll(async () => {
  await stage.close()
  await mcp.stop()
  await raw.stop()
})

/** No session and no request outlives the attempt that opened it. */
afterEach(async () => {
  await waitUntil(
    async () => {
      const { sessions, requests } = await mcp.counts()
      return sessions === 0 && requests === 0
    },
    { within: 5_000, what: 'that every session and request at the MCP server has ended' },
  )
})

function kit(more: Partial<McpServer> = {}): McpServer {
  return { name: 'kit', url: mcp.url, headers: { authorization: 'Bearer ${MCP_SECRET_KIT}' }, ...more }
}

async function giveServers(handle: string, mcpServers: McpServer[], toolNames: string[] = []): Promise<void> {
  await stage.putBot(handle, { toolNames, mcpServers })
}

/** Runs a job whose model calls one tool and then says `done`; answers the job and what the model read of the call. */
async function runCall(handle: string, message: string, name: string, input: unknown, more: SpawnMore = {}) {
  raw.answer(message, callsTool(name, input), says('done'))
  const job = await runRoot(stage, handle, message, more)
  const [call] = await stage.runtime.database.agentToolCall.findMany({ where: { jobId: job.id } })
  return { job, call, read: outputsOf(message).at(-1) }
}

function outputsOf(message: string): unknown[] {
  const { input } = raw.requests(message).at(-1)?.body ?? {}
  const items: { type?: string; output?: unknown }[] = Array.isArray(input) ? input : []
  return items.filter((item) => item.type === 'function_call_output').map(({ output }) => output)
}

/** The tools that the model was offered in the n-th call. */
function offeredTo(message: string, call = 0): string[] {
  const { tools } = raw.requests(message)[call]?.body ?? {}
  return Array.isArray(tools) ? tools.map(({ name }: { name: string }) => name) : []
}

function instructionsOf(message: string): string {
  return JSON.stringify(raw.requests(message)[0]?.body)
}

async function problemsOf(jobId: string): Promise<unknown[]> {
  const events = await stage.runtime.database.agentEvent.findMany({ where: { jobId, kind: 'mcp-server' } })
  return events.map(({ data }) => data)
}

/** Says something for ever, and nothing in it. */
function endless(response: Parameters<RequestListener>[1]): void {
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  const timer = setInterval(() => response.write(': still here\n\n'), 50)
  response.once('close', () => clearInterval(timer))
}

test('the tools of a bot’s MCP server are offered to the model, run there, and answer it', async () => {
  const { job, call, read } = await runCall('bot', 'say hello', 'kit_echo', { text: 'hello' })
  expect(job).toMatchObject({ state: 'completed', result: 'done', toolNames: ['kit_*'] })
  expect(offeredTo('say hello')).toEqual([
    'kit_echo',
    'kit_slow',
    'kit_failing',
    'kit_huge',
    'kit_look',
    expect.stringMatching(/^kit_odd_name_with_a_space_[0-9a-f]{8}$/),
  ])
  expect(JSON.stringify(read)).toContain('hello')
  expect(decodeStored(call?.output)).toEqual({ content: [{ type: 'text', text: 'hello' }], isError: false })
  expect(await answerOf(stage, job.id)).toContainEqual(
    expect.objectContaining({ type: 'tool-kit_echo', state: 'output-available', input: { text: 'hello' } }),
  )
  // Viewers see the part that the record will have.
  const frames = (await stage.runtime.liveStreams.read(job.id, 0)).flatMap(({ chunks }) => chunks)
  expect(frames.filter((chunk) => 'dynamic' in chunk && chunk.dynamic)).toEqual([])
})

test('a native tool wins over one of a server with its name, and the history says so', async () => {
  await giveServers('both', [kit({ name: 'twin' })], ['twin_huge'])
  const { job, read } = await runCall('both', 'both have it', 'twin_huge', { megabytes: 1 })
  expect(read).toBe('the tool of our own')
  expect(await problemsOf(job.id)).toEqual([
    { server: 'twin', problem: 'left out, since tools of our own have these names: twin_huge' },
  ])
})

test('a picture reaches the model as a picture', async () => {
  const { read } = await runCall('bot', 'show it', 'kit_look', {})
  expect(read).toEqual([{ type: 'input_image', image_url: 'data:image/png;base64,iVBORw0KGgo=' }])
})

test('a name that providers do not take is called by another one', async () => {
  await runCall('bot', 'first look', 'kit_echo', { text: 'x' })
  const odd = offeredTo('first look').at(-1) ?? ''
  expect((await runCall('bot', 'be odd', odd, {})).read).toEqual([{ type: 'input_text', text: 'odd' }])
})

test('a tool that fails at its server is an error result, and the job goes on', async () => {
  const { job, read, call } = await runCall('bot', 'fail there', 'kit_failing', { text: 'thing' })
  expect(job).toMatchObject({ state: 'completed', result: 'done' })
  expect(read).toContain('no such thing')
  expect(decodeStored(call?.error)).toMatchObject({ message: 'no such thing' })
})

test('an answer that is too large is an error result; the worker does not hold it', async () => {
  const { job, read } = await runCall('bot', 'too much', 'kit_huge', { megabytes: 12 })
  expect(job.state).toBe('completed')
  expect(read).toContain('answered with more than 10 MB.')
})

test('STUCK-10: a slow call ends by the tool’s time limit, and its server is told', async () => {
  // The next model call answers only when the server has heard of it: the end of the session would end the call, too.
  raw.answer('be slow', callsTool('kit_slow', { text: 'timeout' }), async (reply) => {
    await waitUntil(async () => (await mcp.counts()).slow['timeout'] === 'cancelled')
    reply.text('done')
    reply.finish()
  })
  expect(await runRoot(stage, 'bot', 'be slow')).toMatchObject({ state: 'completed', result: 'done' })
  expect(outputsOf('be slow')).toEqual([expect.stringMatching(/timeout|timed out/i)])
})

test('COST-7: an abort reaches the request of a slow call; connection and session are closed', async () => {
  raw.answer('wait there', callsTool('kit_slow', { text: 'abort' }))
  const { id } = await spawnRoot(stage, 'bot', 'wait there')
  await waitUntil(async () => (await mcp.counts()).slow['abort'] === 'running')
  expect((await mcp.counts()).sessions).toBe(1)
  expect(await abort(stage, id)).toMatchObject({ state: 'aborted' })
  await waitUntil(async () => (await mcp.counts()).slow['abort'] === 'cancelled', { within: 2_000 })
})

test('COST-4: a run that has lost its claim cuts its call and closes its session', async () => {
  raw.answer('lose it', callsTool('kit_slow', { text: 'lost' }), says('done'))
  const { id } = await spawnRoot(stage, 'bot', 'lose it')
  await waitUntil(async () => (await mcp.counts()).slow['lost'] === 'running')
  await stage.runtime.database.agentJob.update({ where: { id }, data: { claimToken: 'of somebody else' } })
  await waitUntil(async () => (await mcp.counts()).slow['lost'] === 'cancelled', { within: 3_000 })
  // The claim that no run knows goes back after a while, and the next attempt ends the job.
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'done', attempt: 2 })
})

test('an attempt has one session at each server of its bot', async () => {
  await stage.putBot('child', { toolNames: [] })
  await giveServers('parent', [kit()], ['spawnAgent'])
  const spawn = { bot: { botGroup: 'forge', botHandle: 'child' }, message: 'of the parent' }
  raw.answer('spawn one', callsTool('spawnAgent', spawn), says('done'))
  raw.answer('of the parent', says('yes'))
  const { opened } = await mcp.counts()
  const job = await runRoot(stage, 'parent', 'spawn one')
  expect(job).toMatchObject({ state: 'completed', attempt: 2 })
  // One for each attempt of the parent, none for the child.
  expect((await mcp.counts()).opened - opened).toBe(2)
})

describe('toolFilter', () => {
  test('names tools of a server', async () => {
    await runCall('bot', 'only echo', 'kit_echo', { text: 'x' }, { overrides: { toolFilter: ['kit_echo'] } })
    expect(offeredTo('only echo')).toEqual(['kit_echo'])
  })

  test('without any of a server, that server is not asked', async () => {
    await giveServers('mixed', [kit()], ['checkAgent'])
    raw.answer('no server', says('done'))
    const { opened } = await mcp.counts()
    await runRoot(stage, 'mixed', 'no server', { overrides: { toolFilter: ['checkAgent'] } })
    expect(offeredTo('no server')).toEqual(['checkAgent'])
    expect((await mcp.counts()).opened).toBe(opened)
  })

  test('a tool that its server does not have is refused by name, before any model call', async () => {
    raw.answer('misspelt', says('done'))
    const job = await runRoot(stage, 'bot', 'misspelt', { overrides: { toolFilter: ['kit_echo', 'kit_ecco'] } })
    expect(job).toMatchObject({ state: 'failed', reason: 'unknown_tool', result: null })
    expect(job.error).toBe('Unknown tools: kit_ecco. Known: kit_echo.')
    expect(raw.requests('misspelt')).toEqual([])
  })

  test('SEC-4: a child gets of a server what its parent was given', async () => {
    await giveServers('planner', [kit()], ['spawnAgent'])
    await giveServers('worker', [kit()])
    const child = { bot: { botGroup: 'forge', botHandle: 'worker' }, message: 'of the planner' }
    raw.answer(
      'delegate',
      callsTool('spawnAgent', { ...child, overrides: { toolFilter: ['kit_slow'] } }, 'call_0'),
      callsTool('spawnAgent', child, 'call_1'),
      says('done'),
    )
    raw.answer('of the planner', says('worked'))
    await runRoot(stage, 'planner', 'delegate', { overrides: { toolFilter: ['spawnAgent', 'kit_echo'] } })
    expect(JSON.stringify(outputsOf('delegate'))).toContain('Unknown tools: kit_slow. Known: kit_echo.')
    expect(offeredTo('of the planner')).toEqual(['kit_echo'])
  })
})

test('a list of allowed tools holds; one that the server does not have is noted, and costs nothing else', async () => {
  await giveServers('listed', [kit({ tools: ['echo', 'gone'] })])
  const { job } = await runCall('listed', 'from the list', 'kit_echo', { text: 'x' })
  expect(job.state).toBe('completed')
  expect(offeredTo('from the list')).toEqual(['kit_echo'])
  expect(await problemsOf(job.id)).toEqual([{ server: 'kit', problem: 'does not offer kit_gone' }])
})

describe('a server that is of no use', () => {
  const servers: Server[] = []
  afterAll(() => {
    for (const server of servers) {
      server.closeAllConnections()
      server.close()
    }
  })

  async function answering(listener: RequestListener): Promise<string> {
    const server = createServer(listener)
    servers.push(server)
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    // A server that listens on a port has an address with that port.
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`
  }

  async function closedAddress(): Promise<string> {
    const url = await answering(() => undefined)
    await new Promise((resolve) => servers.pop()?.close(resolve))
    return url
  }

  const JSON_TYPE = { 'content-type': 'application/json' }
  const listing = (tools: unknown): RequestListener =>
    async function answer(request, response) {
      let body = ''
      for await (const chunk of request) body += String(chunk)
      const { id, method } = JSON.parse(body === '' ? '{}' : body)
      const results: Record<string, unknown> = {
        initialize: {
          protocolVersion: '2025-06-18',
          capabilities: { tools: {} },
          serverInfo: { name: 'x', version: '1' },
        },
        'tools/list': { tools },
      }
      if (method === 'tools/list' && tools === undefined) return
      if (results[method] === undefined) response.writeHead(id === undefined ? 202 : 400).end('no')
      else response.writeHead(200, JSON_TYPE).end(JSON.stringify({ jsonrpc: '2.0', id, result: results[method] }))
    }

  test.each<[string, RequestListener | undefined, string]>([
    ['down', undefined, 'cannot be reached (ECONNREFUSED)'],
    ['silent', () => undefined, 'did not answer within 1 s'],
    ['a page', (_, response) => void response.setHeader('content-type', 'text/html').end('<h1>Hello</h1>'), 'not MCP'],
    ['json of its own', (_, response) => void response.writeHead(200, JSON_TYPE).end('{"hello":1}'), 'not MCP'],
    ['half of a json', (_, response) => void response.writeHead(200, JSON_TYPE).end('{"jsonrpc":'), 'not MCP'],
    ['a redirect', (_, response) => void response.writeHead(302, { location: mcp.url }).end(), 'with a redirect'],
    ['an error', (_, response) => void response.writeHead(503).end('try later'), 'answered with status 503'],
    ['a list of nonsense', listing([{ name: 7 }]), 'not MCP'],
    ['a list that never comes', listing(undefined), 'did not answer within 1 s'],
    ['an endless stream', (_, response) => endless(response), 'did not answer within 1 s'],
    ['a hang-up', (request) => void request.socket.destroy(), 'cannot be reached (UND_ERR_SOCKET)'],
  ])('%s: the job runs without its tools, and says why', async (what, listener, problem) => {
    const url = listener === undefined ? await closedAddress() : await answering(listener)
    const message = `with ${what}`
    await giveServers('unlucky', [kit({ name: 'bad', url }), kit()])
    const { job, read } = await runCall('unlucky', message, 'kit_echo', { text: 'all the same' })
    expect(job).toMatchObject({ state: 'completed', result: 'done' })
    expect(JSON.stringify(read)).toContain('all the same')
    expect(offeredTo(message).filter((name) => name.startsWith('bad_'))).toEqual([])
    expect(instructionsOf(message)).toContain('The tools of the MCP server \\"bad\\" are not available now')
    expect(await problemsOf(job.id)).toEqual([{ server: 'bad', problem: expect.stringContaining(problem) }])
  })

  test('SEC-6: one that refuses our token, and repeats it, or lacks it: no secret is in any row, stream or Redis text', async () => {
    const wrong = kit({ name: 'wrong', headers: { authorization: 'Bearer ${MCP_SECRET_KIT}-and-more' } })
    const unset = kit({ name: 'unset', headers: { authorization: 'Bearer ${MCP_SECRET_NOBODY}' } })
    const other = kit({ name: 'other', headers: { authorization: 'Bearer ${OPENAI_API_KEY}' } })
    await giveServers('refused', [wrong, unset, other, kit()])
    const { job } = await runCall('refused', 'keep it secret', 'kit_failing', { text: 'header' })
    expect(await problemsOf(job.id)).toEqual([
      { server: 'wrong', problem: 'answered with status 401' },
      { server: 'unset', problem: expect.stringMatching(/^needs the variable MCP_SECRET_NOBODY, which is not set/) },
      { server: 'other', problem: expect.stringMatching(/^needs the variable OPENAI_API_KEY, which is not set/) },
    ])
    const { database } = stage.runtime
    const [calls, ...rows] = await Promise.all([
      database.agentToolCall.findMany({ where: { jobId: job.id } }),
      database.agentStep.findMany({ where: { jobId: job.id } }),
      database.agentEvent.findMany({ where: { jobId: job.id }, omit: { id: true } }),
      database.aiMessage.findMany({ where: { convoId: job.convoId } }),
      database.agentJob.findMany({ where: { id: job.id }, select: { botSnapshot: true, error: true, result: true } }),
      redisTexts(stage),
    ])
    expect(decodeStored(calls[0]?.error)).toMatchObject({ message: 'not with Bearer [secret]' })
    expect(JSON.stringify([calls, rows])).not.toContain(TOKEN)
  })

  test('one that dies in the middle of a call is an error result that says so; back again, it is of use again', async () => {
    const port = await portToReturnTo()
    const own = await startMcpProcess({ port })
    await giveServers('mortal', [{ name: 'own', url: own.url }])
    raw.answer(
      'outlive it',
      callsTool('own_slow', { text: 'cut' }, 'call_0'),
      callsTool('own_echo', { text: 'anyone?' }, 'call_1'),
      async (reply) => {
        reborn = await startMcpProcess({ port })
        reply.call('own_echo', { text: 'welcome back' }, 'call_2')
        reply.finish()
      },
      says('done'),
    )
    let reborn: McpProcess | undefined
    const { id } = await spawnRoot(stage, 'mortal', 'outlive it')
    await waitUntil(async () => (await own.counts()).slow['cut'] === 'running')
    own.kill('SIGKILL')
    const killedAt = performance.now()
    // The third may follow before anybody has looked.
    await waitUntil(() => raw.requests('outlive it').length >= 2)
    expect(performance.now() - killedAt).toBeLessThan(TOOL_TIMEOUT_MS)
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'done' })
    const [cut, refused, answered] = outputsOf('outlive it').map((output) => JSON.stringify(output))
    expect(cut).toMatch(/The MCP server .+own.+ (closed the connection|cannot be reached).+may have taken effect/)
    expect(refused).toMatch(/The MCP server .+own.+ cannot be reached \(ECONNREFUSED\)\. The call was not made\./)
    expect(answered).toContain('welcome back')
    await waitUntil(async () => (await reborn?.counts())?.sessions === 0)
    await reborn?.stop()
  })

  test('STUCK-10: one that is frozen holds neither an abort nor the slot', async () => {
    const own = await startMcpProcess()
    await giveServers('freezing', [{ name: 'own', url: own.url }])
    raw.answer('freeze it', callsTool('own_slow', { text: 'frozen' }))
    const { id } = await spawnRoot(stage, 'freezing', 'freeze it')
    await waitUntil(async () => (await own.counts()).slow['frozen'] === 'running')
    own.kill('SIGSTOP')
    const from = performance.now()
    await abort(stage, id)
    expect(await endOf(stage, id)).toMatchObject({ state: 'aborted' })
    expect(performance.now() - from).toBeLessThan(1_500)
    const lane = stage.runtime.deliveries.lane('default')
    await waitUntil(async () => (await lane.getJobCounts('active'))['active'] === 0, { within: 4_000 })
    own.kill('SIGCONT')
    await own.stop()
  })
})
