// What a worker tells of itself, to probes and to Prometheus.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { loadConfig } from '@offshoot/shared/config'
import { createExtensions } from '@offshoot/shared/extensions'
import { openRuntime } from '@offshoot/shared/runtime'
import { endOf, readJob, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { counted, seriesIn } from '@offshoot/testing/metrics'
import { startWorkerProcess, type TestProcess } from '@offshoot/testing/processes'
import { callsTool, says, staysSilent, ticking } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { startWorker } from '../src/worker.ts'
import { openSystemStage, type SystemStage } from './system-stage.ts'

let stage: SystemStage
beforeAll(async () => {
  stage = await openSystemStage({ WORKER_HEALTH_PORT: '0', WORKER_DRAIN_MS: '20000' })
  await stage.putBot('plain', { toolNames: [] })
})
beforeEach(() => stage.fleet.replenish())
afterAll(() => stage.close())

const scrape = async (worker: TestProcess) => (await fetch(`${worker.url}/metrics`)).text()
const MODEL = 'openai:gpt-5'

test('model calls, tokens, tools, deliveries and frames are counted and timed by the worker that ran the job', async () => {
  const firstOutput = 300
  stage.raw.answer(
    'measure me',
    (reply) => reply.status(503, { message: 'busy' }),
    async (reply) => {
      await new Promise((resolve) => setTimeout(resolve, firstOutput))
      reply.call('note', { text: 'measured' }, 'call_0')
      reply.finish({ usage: { input: 100, output: 20 } })
    },
    async (reply) => {
      reply.text('done')
      reply.finish({ usage: { input: 130, output: 5 } })
    },
  )
  const { id } = await spawnRoot(stage, 'bot', 'measure me')
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'done' })
  const worker = await stage.fleet.workerOf(id)
  const text = await waitUntil(async () => {
    const now = await scrape(worker)
    return seriesIn(now, 'offshoot_deliveries_total', { outcome: 'completed' }) === 1 && now
  })
  const model = MODEL
  expect(seriesIn(text, 'offshoot_model_calls_total', { model, outcome: 'model_unavailable' })).toBe(1)
  expect(seriesIn(text, 'offshoot_model_calls_total', { model, outcome: 'answered' })).toBe(2)
  expect(seriesIn(text, 'offshoot_tokens_total', { model, kind: 'input' })).toBe(230)
  expect(seriesIn(text, 'offshoot_tokens_total', { model, kind: 'output' })).toBe(25)
  for (const name of ['offshoot_model_call_seconds', 'offshoot_model_first_chunk_seconds']) {
    expect(seriesIn(text, `${name}_count`, { model })).toBe(2)
    expect(seriesIn(text, `${name}_sum`, { model })).toBeGreaterThanOrEqual(firstOutput / 1_000)
  }
  expect(seriesIn(text, 'offshoot_tool_seconds_count', { tool: 'note', outcome: 'ok' })).toBe(1)
  expect(seriesIn(text, 'offshoot_spawn_to_claim_seconds_count')).toBe(1)
  expect(seriesIn(text, 'offshoot_spawn_to_claim_seconds_sum')).toBeLessThan(10)
  expect(seriesIn(text, 'offshoot_live_frames_total', { outcome: 'sent' })).toBeGreaterThan(3)
  expect(seriesIn(text, 'offshoot_jobs_ended_total', { state: 'completed', reason: 'completed' })).toBe(1)
  expect(seriesIn(text, 'offshoot_worker_jobs')).toBe(0)
  expect(seriesIn(text, 'offshoot_up', { service: 'postgres' })).toBe(1)
  expect(text).toContain('process_cpu_user_seconds_total')
  expect(text).toContain('nodejs_eventloop_lag_seconds')
  expect(text).not.toContain(id)
  // The journal, too, counts a step from its call.
  const [step] = await stage.runtime.database.agentStep.findMany({ where: { jobId: id }, orderBy: { index: 'asc' } })
  const tookMs = (step?.finishedAt?.getTime() ?? 0) - (step?.startedAt.getTime() ?? 0)
  expect(tookMs).toBeGreaterThanOrEqual(firstOutput)
})

test('jobs that run show while they do', async () => {
  stage.raw.answer('still running', callsTool('slow', { text: 'metrics' }), says('over'))
  const { id } = await spawnRoot(stage, 'bot', 'still running')
  await stage.untilNote('slow begins metrics')
  const worker = await stage.fleet.workerOf(id)
  expect(seriesIn(await scrape(worker), 'offshoot_worker_jobs')).toBe(1)
  await stage.release('metrics')
  await endOf(stage, id)
  await waitUntil(async () => seriesIn(await scrape(worker), 'offshoot_worker_jobs') === 0)
})

test('a worker that was frozen counts the heartbeats that it missed, and the claim that it lost', async () => {
  stage.raw.answer('freeze me', ticking, says('by another one'))
  const { id } = await spawnRoot(stage, 'bot', 'freeze me')
  const frozen = await stage.fleet.workerOf(id)
  await untilLiveText(stage, id, 'tick')
  const missed = async () => seriesIn(await scrape(frozen), 'offshoot_heartbeats_missed_total') ?? NaN
  const before = await missed()
  frozen.kill('SIGSTOP')
  expect(await endOf(stage, id, 20_000)).toMatchObject({ result: 'by another one' })
  frozen.kill('SIGCONT')
  await waitUntil(async () => (await missed()) > before)
  const outcome = (name: string) => async () =>
    (seriesIn(await scrape(frozen), 'offshoot_deliveries_total', { outcome: name }) ?? 0) > 0
  await waitUntil(outcome('lost'))
})

describe('probes', () => {
  test('a worker is alive and ready; while it drains it is alive and not ready, and still tells its numbers', async () => {
    stage.raw.answer('hold the drain', callsTool('slow', { text: 'drain' }), says('over'))
    const { id } = await spawnRoot(stage, 'bot', 'hold the drain')
    await stage.untilNote('slow begins drain')
    const worker = await stage.fleet.workerOf(id)
    const status = async (path: string) => (await fetch(worker.url + path)).status
    expect(await Promise.all(['/livez', '/readyz', '/metrics'].map(status))).toEqual([200, 200, 200])
    expect(await status('/nothing')).toBe(404)
    expect((await fetch(`${worker.url}/livez`, { method: 'POST' })).status).toBe(405)
    worker.kill('SIGTERM')
    await waitUntil(async () => (await status('/readyz')) === 503)
    expect(await (await fetch(`${worker.url}/readyz`)).json()).toEqual({
      status: 'not ready',
      checks: { postgres: 'ok', redis: 'ok', taking: false },
    })
    expect(await Promise.all(['/livez', '/metrics'].map(status))).toEqual([200, 200])
    await stage.release('drain')
    expect(await worker.exited).toBe(0)
    expect((await endOf(stage, id)).state).toBe('completed')
  })

  test('it listens on 127.0.0.1 alone, and nowhere when no port is given', async () => {
    const [worker] = stage.fleet.others({} as TestProcess)
    expect(worker?.url).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/)
    const silent = await startWorkerProcess({ ...stage.environment, WORKER_HEALTH_PORT: '' })
    expect(silent.url).toBe('')
    await silent.stop()
  })

  test('a port that is taken is named, with what to do, and leaves no worker behind', async () => {
    const taken = createServer().listen(0, '127.0.0.1')
    await new Promise((resolve) => taken.once('listening', resolve))
    const { port } = taken.address() as AddressInfo
    const { worker } = stage.runtime.database
    const before = await worker.count()
    await expect(startWorkerProcess({ ...stage.environment, WORKER_HEALTH_PORT: String(port) })).rejects.toThrow(
      /The health listener's address is taken .*Set WORKER_HEALTH_PORT to another port/,
    )
    expect(await worker.count()).toBeLessThanOrEqual(before)
    await new Promise((resolve) => taken.close(resolve))
  })
})

test('a drain counts as in time, or as forced when it cuts a step', async () => {
  const config = loadConfig({ ...stage.environment, WORKER_LANES: 'apart', WORKER_DRAIN_MS: '0' })
  const extensions = createExtensions(config, {})
  stage.raw.answer('cut my step', staysSilent)
  stage.raw.answer('nothing to cut', says('over'))
  for (const [message, outcome] of [
    ['nothing to cut', 'in_time'],
    ['cut my step', 'forced'],
  ] as const) {
    const ofProcess = outcome === 'forced' ? config : { ...config, WORKER_DRAIN_MS: 20_000 }
    const runtime = openRuntime({ config: ofProcess, logger: stage.runtime.logger, extensions, name: 'apart' })
    const worker = await startWorker(runtime)
    const { id } = await spawnRoot(stage, 'plain', message, { lane: 'apart' })
    await waitUntil(async () => (await readJob(stage, id)).state === (outcome === 'forced' ? 'running' : 'completed'))
    await worker.drain()
    for (const each of ['in_time', 'forced'])
      expect(await counted(runtime, 'offshoot_drains_total', { outcome: each })).toBe(each === outcome ? 1 : 0)
    await runtime.close()
  }
})
