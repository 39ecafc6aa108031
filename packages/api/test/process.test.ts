import { connect, type Socket } from 'node:net'
import { startApiProcess, type TestProcess } from '@offshoot/testing/processes'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ApiUnderTest, openApi, PLANNER } from './api-under-test.ts'
import { readEvents } from './event-stream.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
})
afterAll(() => api.close())

/** Starts the API as a process of its own on the same services; it ends with the test. */
async function withProcess(
  environment: Record<string, string>,
  work: (process: TestProcess) => Promise<void>,
): Promise<void> {
  const process = await startApiProcess({ ...api.stage.environment, ...environment })
  try {
    await work(process)
  } finally {
    await process.stop()
  }
}

const asAlice = () => ({ authorization: `Bearer ${api.keys.alice}`, 'content-type': 'application/json' })

test('STUCK-14: SIGTERM answers waiting spawns, ends streams and exits 0; the jobs go on', async () => {
  await withProcess({}, async (process) => {
    const body = JSON.stringify({ ...PLANNER, message: 'waited for' })
    const spawn = fetch(`${process.url}/v1/agents`, { method: 'POST', headers: asAlice(), body })
    const { database } = api.stage.runtime
    const job = await waitUntil(() => database.agentJob.findFirst({ where: { inputMessage: 'waited for' } }))
    const stream = readEvents(await fetch(`${process.url}/v1/agents/${job.id}/stream`, { headers: asAlice() }))
    process.kill('SIGTERM')
    const answer = await spawn
    expect(answer.status).toBe(202)
    expect(await answer.json()).toMatchObject({ jobId: job.id, state: 'pending' })
    expect(await stream.rest()).toEqual([])
    expect(await process.exited).toBe(0)
    await expect(fetch(`${process.url}/livez`)).rejects.toThrow('fetch failed')
    expect(await database.agentJob.findUnique({ where: { id: job.id } })).toMatchObject({ state: 'pending' })
  })
})

describe('STUCK-14: with a request that never ends', () => {
  test('SIGTERM ends the process within its limit', async () => {
    await withProcess({}, async (process) => {
      const socket = await openEndlessRequest(process.url)
      process.kill('SIGTERM')
      expect(await process.exited).toBe(0)
      socket.destroy()
    })
  })

  test('a second signal ends it at once', async () => {
    await withProcess({ LOG_LEVEL: 'info' }, async (process) => {
      const socket = await openEndlessRequest(process.url)
      const startedAt = performance.now()
      process.kill('SIGTERM')
      await waitUntil(() => process.output().includes('stopping'))
      process.kill('SIGINT')
      expect(await process.exited).toBe(1)
      expect(performance.now() - startedAt).toBeLessThan(2_000)
      socket.destroy()
    })
  })
})

async function openEndlessRequest(url: string): Promise<Socket> {
  const socket = connect(Number(new URL(url).port), '127.0.0.1')
  socket.on('error', () => undefined)
  socket.write('POST /v1/agents HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n')
  await new Promise((resolve) => socket.once('connect', resolve))
  return socket
}

test('a wrong environment is said in one message, and the process exits 1', async () => {
  const environment = { ...api.stage.environment, REDIS_URL: 'http://nope', API_PORT: 'many' }
  await expect(startApiProcess(environment)).rejects.toThrow(/ended \(1\)[\s\S]*REDIS_URL must be[\s\S]*API_PORT/)
})

test('a taken port ends the process with a message', async () => {
  const { port } = new URL(api.url)
  const taken = startApiProcess({ ...api.stage.environment, API_PORT: port })
  await expect(taken).rejects.toThrow(`Port ${port} of 127.0.0.1 is taken. Set API_PORT to another one`)
})

test('UX-5: viewers that do not read cost bounded memory, and slow nobody', async () => {
  const jobId = await api.spawn()
  await api.claim(jobId)
  // 100 MB for each of 20 viewers, in a heap of 128 MB: a process that buffered for them would end.
  await withProcess({ NODE_OPTIONS: '--max-old-space-size=128' }, async (process) => {
    const stalled = Array.from({ length: 20 }, () => openStalledViewer(process.url, jobId))
    const reader = readEvents(await fetch(`${process.url}/v1/agents/${jobId}/stream`, { headers: asAlice() }))
    const delta = 'x'.repeat(2_000)
    const batch = Array.from({ length: 10 }, () => ({ type: 'text-delta' as const, id: 't', delta }))
    await api.play(jobId, [
      { type: 'start', messageId: jobId },
      { type: 'start-step' },
      { type: 'text-start', id: 't' },
    ])
    for (let sent = 0; sent < 5_000; sent += 1) await api.play(jobId, batch)
    // A viewer that is more behind than the stream keeps goes on with the next step.
    await api.play(jobId, [{ type: 'text-end', id: 't' }, { type: 'finish-step' }, { type: 'start-step' }])
    let last = await reader.next()
    while (last !== undefined && last.id !== '50006') last = await reader.next()
    expect(last).toEqual({ id: '50006', data: JSON.stringify({ type: 'start-step' }) })
    expect(await (await fetch(`${process.url}/livez`)).json()).toEqual({ status: 'live' })
    for (const socket of stalled) socket.destroy()
    await reader.cancel()
  })
})

/** Asks for a stream and reads nothing of it. */
function openStalledViewer(url: string, jobId: string): Socket {
  const { hostname, port } = new URL(url)
  const socket = connect(Number(port), hostname)
  socket.pause()
  socket.write(`GET /v1/agents/${jobId}/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${api.keys.alice}\r\n\r\n`)
  return socket
}
