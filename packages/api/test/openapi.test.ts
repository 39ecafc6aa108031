import type { Router } from 'express'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createApp } from '../src/app.ts'
import { createOpenRequests } from '../src/open-requests.ts'
import { openApiDocument } from '../src/openapi.ts'
import { type ApiUnderTest, openApi } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
})
afterAll(() => api.close())

/** Pages for people, which are no part of the API. */
const UNDESCRIBED = /^GET \/(docs|openapi)/

test('every route is described, and every description has its route', () => {
  const described = Object.entries(openApiDocument().paths ?? {}).flatMap(([path, operations]) =>
    Object.keys(operations).map((method) => `${method.toUpperCase()} ${path}`),
  )
  const app = createApp(api.stage.runtime, { openRequests: createOpenRequests() })
  // Express names its router `any`; its stack is how it finds a route.
  const routes = routesOf(app.router as unknown as Router, '').filter((route) => !UNDESCRIBED.test(route))
  expect(routes.toSorted()).toEqual(described.toSorted())
  expect(described).toContain('POST /v1/agents/{jobId}/retry')
})

test('the document and the page are served, and the page needs nothing from outside', async () => {
  const { status, body } = await api.json('/openapi.json')
  expect(status).toBe(200)
  expect(body).toMatchObject({ openapi: '3.1.0', info: { title: 'Offshoot' } })
  const page = await api.call('/docs')
  expect(page.headers.get('content-security-policy')).toContain("script-src 'self';")
  const html = await page.text()
  expect(html).not.toMatch(/https?:/)
  for (const [, file] of html.matchAll(/(?:src|href)="([^"]+)"/g)) expect((await api.call(file ?? '')).status).toBe(200)
})

interface Layer {
  route?: { path: string; methods: Record<string, boolean> }
  handle: { stack?: Layer[] }
  matchers: ((path: string) => unknown)[]
}

/** Where routers are mounted. Express keeps no text of a mount path, so each layer is asked which of these it is. */
const MOUNTS = ['/v1', '/agents', '/convos', '/bots', '/dead-letters']

function routesOf(router: Router, prefix: string): string[] {
  return (router.stack as unknown as Layer[]).flatMap((layer) => {
    if (layer.route !== undefined) {
      const path = (prefix + layer.route.path).replace(/(.)\/$/, '$1').replaceAll(/:(\w+)/g, '{$1}')
      return Object.keys(layer.route.methods).map((method) => `${method.toUpperCase()} ${path}`)
    }
    if (layer.handle.stack === undefined) return []
    return routesOf(layer.handle as unknown as Router, prefix + mountOf(layer))
  })
}

function mountOf(layer: Layer): string {
  const leadsTo = (path: string) => layer.matchers.some((match) => match(path) !== false)
  return leadsTo('/elsewhere') ? '' : (MOUNTS.find((mount) => leadsTo(`${mount}/x`)) ?? '')
}
