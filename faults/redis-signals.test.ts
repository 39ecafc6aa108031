// Pub/sub is blocked, and with it every signal: what a signal only makes sooner comes at the next heartbeat.
import { endOf, untilLiveText } from '@offshoot/testing/agents'
import { ticking } from '@offshoot/testing/raw-model'
import { openServiceStage, type ServiceStage } from '@offshoot/testing/service-stage'
import { afterAll, beforeAll, expect, test } from 'vitest'

let stage: ServiceStage

beforeAll(async () => {
  stage = await openServiceStage({ workers: 1, environment: { LOG_LEVEL: 'silent' } })
})
afterAll(() => stage.close())

/** Aborts a running job over HTTP; its end must not wait for a signal. */
async function abortRunning(message: string): Promise<void> {
  const { api, raw, config } = stage
  raw.answer(message, ticking)
  const id = await api.spawn('alice', message)
  await untilLiveText(stage, id, 'tick')
  const before = performance.now()
  const answer = api.fetch('alice', `/v1/agents/${id}/abort`, {})
  expect(await endOf(stage, id)).toMatchObject({ state: 'aborted', reason: 'aborted_by_user', partial: true })
  expect(performance.now() - before).toBeLessThan(config.WORKER_HEARTBEAT_MS + 1_000)
  expect(await (await answer).json()).toMatchObject({ jobId: id, state: 'aborted' })
}

test('STUCK-4: an abort stops a running job within a heartbeat + 1 s while no process may use pub/sub', async () => {
  await stage.redis.command('ACL', 'SETUSER', 'default', 'resetchannels')
  try {
    expect(await stage.api.readiness()).toBe(200)
    await abortRunning('no channels')
    expect(await stage.restarts()).toEqual([])
  } finally {
    await stage.redis.command('ACL', 'SETUSER', 'default', 'allchannels')
  }
})

test('STUCK-4: and while every subscription is cut again and again', async () => {
  const over = new AbortController()
  const cutting = (async () => {
    while (!over.signal.aborted) await stage.redis.command('CLIENT', 'KILL', 'TYPE', 'pubsub')
  })()
  try {
    await abortRunning('cut off')
    expect(await stage.restarts()).toEqual([])
  } finally {
    over.abort()
    await cutting
  }
})
