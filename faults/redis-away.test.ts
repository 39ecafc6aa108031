// Redis is away for a while and comes back empty. Each outage has a stage of its own; they pass at the same time.
import { endOf, readJob, untilLiveText } from '@offshoot/testing/agents'
import { type RawScript, says } from '@offshoot/testing/raw-model'
import { openServiceStage, type ServiceStage } from '@offshoot/testing/service-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'

const OUTAGES_S = [5, 12, 40]
/** From the moment that Redis is back. */
const RECOVERY_LIMIT_MS = 25_000

const stages = new Map<number, ServiceStage>()

beforeAll(async () => {
  for (const seconds of OUTAGES_S) {
    const stage = await openServiceStage({ workers: 1, environment: { LOG_LEVEL: 'silent' } })
    stages.set(seconds, stage)
    stage.raw.answer('before', says('done'))
    stage.raw.answer('during', says('done'))
    stage.raw.answer('after', says('done'))
  }
})
afterAll(async () => {
  await Promise.all([...stages.values()].map((stage) => stage.close()))
})

/** Speaks, and ends when it may. */
function lasting(until: Promise<void>): RawScript {
  return async (reply) => {
    reply.text('I speak')
    await until
    reply.text(' to the end.')
    reply.finish()
  }
}

describe.concurrent('STUCK-9 COST-4', () => {
  test.for(OUTAGES_S)(
    'after %i s without Redis jobs of that time and new ones complete within 25 s, without a restart; those that run go on',
    async (seconds) => {
      const stage = stages.get(seconds)
      if (stage === undefined) throw new Error('no stage')
      const { api, redis, raw } = stage
      await endOf(stage, await api.spawn('alice', 'before'))
      const [beforeItIsBack, afterwards] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
      raw.answer('ends meanwhile', lasting(beforeItIsBack.promise))
      raw.answer('goes on', lasting(afterwards.promise))
      const endsMeanwhile = await api.spawn('alice', 'ends meanwhile')
      const goesOn = await api.spawn('alice', 'goes on')
      for (const id of [endsMeanwhile, goesOn]) await untilLiveText(stage, id, 'I speak')

      await redis.shutDown()
      const awayAt = performance.now()
      await waitUntil(async () => (await api.readiness()) === 503, { what: 'readiness false' })
      const during = await api.spawn('alice', 'during')
      await waitUntil(
        async () => {
          expect(await api.readiness()).toBe(503)
          return performance.now() - awayAt >= seconds * 1_000
        },
        { within: seconds * 2_000 },
      )
      beforeItIsBack.resolve()
      const spoken = { state: 'completed', result: 'I speak to the end.', attempt: 1 }
      expect(await endOf(stage, endsMeanwhile, 5_000)).toMatchObject(spoken)
      await redis.start()
      const backAt = performance.now()
      const after = await api.spawn('alice', 'after')

      const limit = () => RECOVERY_LIMIT_MS - (performance.now() - backAt)
      await waitUntil(async () => (await api.readiness()) === 200, { within: limit(), what: 'readiness true' })
      for (const id of [during, after]) {
        expect(await endOf(stage, id, limit())).toMatchObject({ state: 'completed', attempt: 1 })
      }
      expect(await readJob(stage, goesOn)).toMatchObject({ state: 'running', attempt: 1 })
      afterwards.resolve()
      expect(await endOf(stage, goesOn)).toMatchObject(spoken)
      for (const message of ['during', 'after', 'ends meanwhile', 'goes on'])
        expect(raw.requests(message)).toHaveLength(1)
      expect(await stage.restarts()).toEqual([])
    },
  )
})
