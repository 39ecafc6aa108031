// What a product gets: the packages as they are built and packed, installed with the registry's own dependencies by npm
// into an empty folder, imported from plain JavaScript, and type-checked.
import { spawn } from 'node:child_process'
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type MockModel, startMockModel } from '@offshoot/testing/mock-model'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { afterAll, beforeAll, expect, test } from 'vitest'

const ROOT = path.resolve(import.meta.dirname, '../../..')
const PNPM = ['-y', 'pnpm@12.21.0']
const INSTALL_LIMIT_MS = 300_000

let stage: TestStage
let mock: MockModel
let consumer: string
/** What the tarballs hold. */
const packed: string[] = []
beforeAll(async () => {
  mock = await startMockModel()
  stage = await openTestStage({ environment: { OPENAI_BASE_URL: mock.baseUrl } })
  await stage.putBot('writer')
  consumer = await mkdtemp(path.join(tmpdir(), 'offshoot-consumer-'))
  for (const name of ['shared', 'worker']) {
    // What an older build left behind must not be packed.
    await rm(path.join(ROOT, 'packages', name, 'dist'), { recursive: true, force: true })
    await run('npx', [...PNPM, '--filter', `@offshoot/${name}`, 'build'], ROOT)
    await run('npx', [...PNPM, '--filter', `@offshoot/${name}`, 'pack', '--pack-destination', consumer], ROOT)
  }
  const tarballs = (await readdir(consumer)).toSorted()
  for (const tarball of tarballs) packed.push(...(await run('tar', ['-tzf', tarball], consumer)).split('\n'))
  await write('package.json', JSON.stringify({ name: 'consumer', private: true, type: 'module' }))
  const install = ['install', '--no-audit', '--no-fund', '--prefer-offline']
  await run('npm', [...install, ...tarballs.map((tarball) => `./${tarball}`)], consumer)
}, INSTALL_LIMIT_MS)
afterAll(async () => {
  await mock.stop()
  await stage.close()
  await rm(consumer, { recursive: true, force: true })
})

const write = (name: string, text: string) => writeFile(path.join(consumer, name), text)

/** Runs a command to its end and answers what it printed. @throws Error with all its output when it fails */
function run(command: string, args: string[], cwd: string, environment: Record<string, string> = {}): Promise<string> {
  // Without what the package manager that runs the tests has set for its own scripts, but for where packages come from.
  const foreign = /^(npm_(?!config_(registry|cache)$)|pnpm_)/i
  const ours = Object.fromEntries(Object.entries(process.env).filter(([name]) => !foreign.test(name)))
  const child = spawn(command, args, { cwd, env: { ...ours, ...environment }, stdio: ['ignore', 'pipe', 'pipe'] })
  let stdout = ''
  let stderr = ''
  child.stdout.on('data', (chunk: Buffer) => (stdout += chunk.toString()))
  child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()))
  return new Promise((resolve, reject) => {
    child.once('error', reject)
    child.once('close', (code) => {
      if (code === 0) resolve(stdout)
      else reject(new Error(`${command} ${args.join(' ')} ended with ${code}:\n${stdout}\n${stderr}`))
    })
  })
}

test('the packages hold built code and types, the generated database client included, and no sources or tests', () => {
  expect(packed).toContain('package/dist/client.js')
  expect(packed).toContain('package/dist/client.d.ts')
  expect(packed).toContain('package/dist/db/generated/client.js')
  expect(packed).toContain('package/dist/inline-runner.js')
  expect(packed).toContain('package/dist/inline-runner.d.ts')
  const strange = packed.filter(
    (file) => !/^package\/(dist\/.*\.(js|d\.ts)|package\.json|README\.md|LICENSE)?$/.test(file),
  )
  expect(strange.filter((file) => file !== '')).toEqual([])
  expect(packed.filter((file) => file.includes('.test.'))).toEqual([])
})

test('STATE-11: plain JavaScript imports it, spawns and checks, and the process ends by itself after close', async () => {
  await write(
    'host.js',
    `import { createOffshoot } from '@offshoot/shared'
     import { getSpawnContext } from '@offshoot/shared/spawn-context'
     const offshoot = await createOffshoot({ extensions: {} })
     const context = { userId: 'alice', parentConvoId: 'c', parentConvoOwnerId: 'alice', parentConvoSpaceId: null, spawnDepth: 0 }
     const job = await offshoot.spawn(context, { bot: { botGroup: 'forge', botHandle: 'writer' }, message: 'Write.', mode: 'async' })
     const seen = await offshoot.check('alice', { jobId: job.id })
     const sameModule = offshoot.runWithSpawnContext(context, () => getSpawnContext().userId)
     const status = await job.status()
     await offshoot.close()
     console.log(JSON.stringify({ id: job.id, status, seen, sameModule, tools: Object.keys(offshoot.tools()) }))`,
  )
  const printed: unknown = JSON.parse(await run(process.execPath, ['host.js'], consumer, stage.environment))
  expect(printed).toMatchObject({
    id: expect.stringMatching(/^[0-9a-f-]{36}$/),
    status: 'pending',
    seen: { state: 'pending', progress: { step: 0, maxSteps: 25 } },
    sameModule: 'alice',
    tools: ['spawnAgent', 'checkAgent', 'abortAgent'],
  })
  expect(await stage.runtime.database.agentJob.count({ where: { ownerId: 'alice', state: 'pending' } })).toBe(1)
})

test('a host in plain JavaScript runs a job inline, without Redis, and the process ends by itself after close', async () => {
  mock.answer('Write inline.', ['Written.'])
  await write(
    'inline.js',
    `import { createOffshoot } from '@offshoot/shared'
     import { createInlineRunner } from '@offshoot/worker/inline-runner'
     const offshoot = await createOffshoot({ inlineRunner: createInlineRunner, extensions: { runner: 'inline' } })
     const context = { userId: 'alice', parentConvoId: 'c', parentConvoOwnerId: 'alice', parentConvoSpaceId: null, spawnDepth: 0 }
     const outcome = await offshoot.run(context, { bot: { botGroup: 'forge', botHandle: 'writer' }, message: 'Write inline.' })
     await offshoot.close()
     console.log(JSON.stringify(outcome))`,
  )
  const environment = { ...stage.environment, REDIS_URL: '' }
  const printed: unknown = JSON.parse(await run(process.execPath, ['inline.js'], consumer, environment))
  expect(printed).toMatchObject({ mode: 'sync', state: 'completed', result: 'Written.' })
})

test('its types check in a TypeScript project: right uses pass, wrong ones do not', async () => {
  await write(
    'host.ts',
    `import { createOffshoot, type Offshoot } from '@offshoot/shared'
     import { defineConfig } from '@offshoot/shared/extensions'
     import type { AgentHandle, AgentOutcome } from '@offshoot/shared/agent-handle'
     import type { SpawnContext } from '@offshoot/shared/spawn-context'
     import { createInlineRunner } from '@offshoot/worker/inline-runner'
     import { streamText } from 'ai'

     export const config = defineConfig({ resolveBot: async (ref, caller) => undefined })
     export async function use(context: SpawnContext): Promise<string | null> {
       const offshoot: Offshoot = await createOffshoot({ inlineRunner: createInlineRunner })
       // @ts-expect-error: that is no runner
       await createOffshoot({ inlineRunner: () => undefined })
       const handle: AgentHandle = await offshoot.spawn(context, { bot: { botId: 'b' }, message: 'Write.' })
       const outcome: AgentOutcome = await handle.await(1_000)
       // @ts-expect-error: a bot has no name
       await offshoot.spawn(context, { bot: { name: 'b' }, message: 'Write.' })
       // @ts-expect-error: there is no such state
       const wrong = outcome.state === 'sleeping'
       offshoot.runWithSpawnContext(context, () => streamText({ model: 'any', prompt: 'p', tools: offshoot.tools() }))
       const checked = await offshoot.check(context.userId, { jobId: handle.id })
       return wrong ? null : (checked.result ?? null)
     }`,
  )
  const options = { module: 'nodenext', target: 'es2024', strict: true, noEmit: true, skipLibCheck: true, types: [] }
  await write('tsconfig.json', JSON.stringify({ compilerOptions: options, files: ['host.ts'] }))
  expect(await run(path.join(ROOT, 'node_modules/.bin/tsc'), ['-p', '.'], consumer)).toBe('')
})
