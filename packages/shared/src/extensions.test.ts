import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { jsonSchema, tool } from 'ai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { ConfigError, loadConfig } from './config.ts'
import { createExtensions, defineConfig, loadExtensions } from './extensions.ts'
import { getAiToolNames, getSelectedAiTools } from './tools/registry.ts'

const MINIMUM = { DATABASE_URL: 'postgresql://me@localhost/db', REDIS_URL: 'redis://localhost:6379' }
let folder: string
beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'offshoot-config-'))
})
afterAll(() => rm(folder, { recursive: true }))

let written = 0
async function load(source: string) {
  written += 1
  const file = path.join(folder, `config-${written}.mjs`)
  await writeFile(file, source)
  return loadExtensions(loadConfig({ ...MINIMUM, OFFSHOOT_CONFIG: file }))
}

async function errorOf(source: string): Promise<string> {
  const error: unknown = await load(source).then(
    () => undefined,
    (reason: unknown) => reason,
  )
  expect(error).toBeInstanceOf(ConfigError)
  return (error as ConfigError).message
}

test('without a config module there is the provider openai, and no bot of a host', async () => {
  const extensions = await loadExtensions(loadConfig(MINIMUM))
  expect([...extensions.providers.keys()]).toEqual(['openai'])
  expect(extensions.runner).toBe('queue')
  expect(await extensions.resolveBot({ botId: 'b' }, { userId: 'alice' })).toBeUndefined()
})

test('a config module adds tools, providers and bots', async () => {
  const extensions = await load(`
    export default {
      tools: [{ id: 'ping', group: 'test', userSelect: false, tool: { inputSchema: {}, execute: () => 'pong' } }],
      providers: { acme: ({ userId, jobId }) => ({ userId, jobId }) },
      runner: 'inline',
      resolveBot: (ref, caller) => ref.botId === 'mine' ? { id: 'mine', ownerId: caller.userId } : undefined,
    }`)
  expect(getAiToolNames()).toContain('ping')
  expect(Object.keys(getSelectedAiTools(['ping']))).toEqual(['ping'])
  expect([...extensions.providers.keys()]).toEqual(['openai', 'acme'])
  expect(extensions.providers.get('acme')?.({ userId: 'u', jobId: 'j' })).toEqual({ userId: 'u', jobId: 'j' })
  expect(extensions.runner).toBe('inline')
  expect(await extensions.resolveBot({ botId: 'mine' }, { userId: 'alice' })).toMatchObject({ ownerId: 'alice' })
  expect(await extensions.resolveBot({ botId: 'other' }, { userId: 'alice' })).toBeUndefined()
})

test('the provider openai is made once, and may be replaced by a product', async () => {
  const builtIn = createExtensions(loadConfig({ ...MINIMUM, OPENAI_API_KEY: 'k' }), {})
  const job = { userId: 'u', jobId: 'j' }
  expect(builtIn.providers.get('openai')?.(job)).toBe(builtIn.providers.get('openai')?.(job))
  const own = Object.assign(() => undefined, { specificationVersion: 'v4' })
  const replaced = createExtensions(loadConfig(MINIMUM), { providers: { openai: () => own as never } })
  expect(replaced.providers.get('openai')?.(job)).toBe(own)
})

test('a config module that cannot be loaded gives one clear error', async () => {
  const file = path.join(folder, 'absent.mjs')
  await expect(loadExtensions(loadConfig({ ...MINIMUM, OFFSHOOT_CONFIG: file }))).rejects.toThrow(
    `OFFSHOOT_CONFIG: cannot load ${file}: `,
  )
  expect(await errorOf('export default {')).toMatch(/^OFFSHOOT_CONFIG: cannot load .*config-\d+\.mjs: /)
  expect(await errorOf("throw new Error('no licence')")).toMatch(/: no licence$/)
})

test('a config module of another shape gives one clear error that names what is wrong', async () => {
  expect(await errorOf('export const tools = []')).toMatch(/must have a default export made with defineConfig\(/)
  expect(await errorOf("export default { tools: 'all' }")).toMatch(/expected array[^\n]*\n[^\n]*tools/)
  expect(await errorOf("export default { tools: [{ id: 'x', group: 'g' }] }")).toMatch(/userSelect[\s\S]*tool/)
  expect(await errorOf('export default { provider: {} }')).toMatch(/provider/)
  expect(await errorOf("export default { providers: { acme: 'url' } }")).toMatch(/must be a function[\s\S]*acme/)
  expect(await errorOf("export default { providers: { 'a:b': () => null } }")).toMatch(
    /may not be empty or contain a colon[^\n]*\n[^\n]*a:b/,
  )
  expect(await errorOf('export default { resolveBot: true }')).toMatch(/must be a function[\s\S]*resolveBot/)
  expect(await errorOf('export default { inngestFunctions: [() => 1] }')).toMatch(
    /must be made with inngest.createFunction[\s\S]*inngestFunctions/,
  )
  expect(await errorOf("export default { runner: 'local' }")).toMatch(/"queue"\|"inline"[\s\S]*runner/)
})

const namedTwice = (description: string) => ({
  id: 'twice',
  group: 'test',
  userSelect: true,
  tool: tool({ description, inputSchema: jsonSchema<object>({ type: 'object' }), execute: () => description }),
})

test('two tools of one name give an error that names them', () => {
  const input = defineConfig({ tools: [namedTwice('a'), namedTwice('b')] })
  expect(() => createExtensions(loadConfig(MINIMUM), input)).toThrow(/"twice" is registered already/)
})
