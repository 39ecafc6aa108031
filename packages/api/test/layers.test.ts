import { defineLayer } from '@offshoot/shared/layers'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ApiUnderTest, openApi } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi({}, { extensions: { layers: [defineLayer({ id: 'notes' }), defineLayer({ id: 'plan' })] } })
})
afterAll(() => api.close())

test('a layer’s state over HTTP: read, write, and a version that guards', async () => {
  const jobId = await api.spawn('alice', { layers: ['notes'] })
  const address = `/v1/agents/${jobId}/layers/notes`
  const put = (body: unknown) => api.json(address, { as: 'alice', method: 'PUT', body })
  expect(await api.json(address, { as: 'alice' })).toEqual({ status: 200, body: { state: null, version: 0 } })
  expect(await put({ state: { done: [1] }, version: 0 })).toEqual({ status: 200, body: { version: 1 } })
  expect(await put({ state: 'late', version: 0 })).toMatchObject({
    status: 409,
    body: { code: 'layer_conflict', version: 1 },
  })
  expect(await put({ state: 'any' })).toEqual({ status: 200, body: { version: 2 } })
  expect(await put({})).toMatchObject({ status: 400, body: { code: 'invalid_request' } })
  expect(await put({ state: 'x'.repeat(300_000) })).toMatchObject({ status: 400, body: { code: 'invalid_request' } })
  expect(await api.json(address, { as: 'alice' })).toEqual({ status: 200, body: { state: 'any', version: 2 } })
})

test('SEC-1: somebody else’s layer looks like one that does not exist', async () => {
  const jobId = await api.spawn('alice', { layers: ['notes'] })
  for (const options of [{}, { method: 'PUT', body: { state: 1 } }]) {
    const foreign = await api.json(`/v1/agents/${jobId}/layers/notes`, { as: 'bob', ...options })
    expect(foreign).toEqual(await api.json('/v1/agents/unknown/layers/notes', { as: 'bob', ...options }))
    expect(foreign.status).toBe(404)
  }
  expect((await api.json(`/v1/agents/${jobId}/layers/plan`, { as: 'alice' })).status).toBe(404)
})

test('a spawn with a layer that nobody knows is refused by name', async () => {
  const body = { bot: { botGroup: 'forge', botHandle: 'planner' }, message: 'hi', layers: ['notes', 'none'] }
  expect(await api.json('/v1/agents', { as: 'alice', body })).toMatchObject({
    status: 400,
    body: { code: 'invalid_request', error: 'Unknown layers: none. Known: notes, plan.', jobId: '' },
  })
})
