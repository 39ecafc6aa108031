// An API on a database and a queue prefix of its own, listening on a free port, with four callers. What a worker would do
// to a job is done by the operations that workers use.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { loadConfig } from '@offshoot/shared/config'
import { claimJob, type Ending } from '@offshoot/shared/db/agent-jobs'
import { storeModelOutput, storeWholeStep } from '@offshoot/shared/db/journal'
import { createApiKey } from '@offshoot/shared/db/users'
import { createExtensions, type ExtensionsInput } from '@offshoot/shared/extensions'
import { finishAgent } from '@offshoot/shared/operations/finish-agent'
import { openRuntime, type Runtime } from '@offshoot/shared/runtime'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import type { UIMessage, UIMessageChunk } from 'ai'
import { createApp } from '../src/app.ts'
import { type CuttableProxy, openCuttableProxy } from './cuttable-proxy.ts'
import { createOpenRequests, type OpenRequests } from '../src/open-requests.ts'

export type Person = 'admin' | 'alice' | 'bob' | 'service'

export interface CallOptions {
  as?: Person
  method?: string
  body?: unknown
  headers?: Record<string, string>
  signal?: AbortSignal
}

export interface ApiUnderTest {
  stage: TestStage
  url: string
  keys: Record<Person, string>
  openRequests: OpenRequests
  /** The way to the service that `cuttable` names. */
  service?: CuttableProxy
  /** Sends a request; a body is sent as JSON. */
  call(path: string, options?: CallOptions): Promise<Response>
  /** The same for an answer that is JSON. */
  json(path: string, options?: CallOptions): Promise<{ status: number; body: Json }>
  /** Spawns an async job and answers its id. */
  spawn(as?: Person, input?: object): Promise<string>
  /** Claims a job as a worker does, and answers its token. */
  claim(jobId: string): Promise<string>
  /** Writes frames into a job's live stream as its first attempt. */
  play(jobId: string, chunks: UIMessageChunk[]): Promise<void>
  /** Stores one whole step that said `text`. */
  storeStep(jobId: string, token: string, text: string): Promise<void>
  /** Ends a job that `token` holds, with the message that its worker has made, if it has made one. */
  finish(jobId: string, token: string, ending?: Partial<Ending>, parts?: UIMessage['parts']): Promise<void>
  close(): Promise<void>
}

/** Fields of an answer that a test looks at. */
export type Json = Record<string, unknown>

export const PLANNER = { bot: { botGroup: 'forge', botHandle: 'planner' } }

export async function openApi(
  environment: Record<string, string> = {},
  { cuttable, extensions }: { cuttable?: 'DATABASE_URL' | 'REDIS_URL'; extensions?: ExtensionsInput } = {},
): Promise<ApiUnderTest> {
  const stage = await openTestStage({ environment, ...(extensions === undefined ? {} : { extensions }) })
  const { service, runtime } = await openRuntimeOf(stage, cuttable)
  const { database, liveStreams, signals } = stage.runtime
  await database.user.createMany({ data: [{ id: 'admin', admin: true }, { id: 'alice' }, { id: 'bob' }] })
  await database.userDelegate.create({ data: { userId: 'alice', delegateUserId: 'bob' } })
  const keys = {
    admin: await createApiKey(database, 'admin'),
    alice: await createApiKey(database, 'alice'),
    bob: await createApiKey(database, 'bob'),
    service: await createApiKey(database, 'chat-app', 'service'),
  }
  await stage.putBot('planner')
  const openRequests = createOpenRequests()
  const server = createServer(createApp(runtime, { openRequests }))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`

  async function call(path: string, { as, method, body, headers = {}, signal }: CallOptions = {}): Promise<Response> {
    return fetch(url + path, {
      method: method ?? (body === undefined ? 'GET' : 'POST'),
      headers: {
        ...(as === undefined ? {} : { authorization: `Bearer ${keys[as]}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      ...(signal === undefined ? {} : { signal }),
    })
  }

  async function json(path: string, options?: CallOptions): Promise<{ status: number; body: Json }> {
    const response = await call(path, options)
    return { status: response.status, body: (await response.json()) as Json }
  }

  async function rootOf(jobId: string): Promise<string> {
    return (await database.agentJob.findUniqueOrThrow({ where: { id: jobId } })).rootJobId
  }

  let played = 0
  return {
    stage,
    url,
    keys,
    openRequests,
    ...(service === undefined ? {} : { service }),
    call,
    json,
    async spawn(as = 'alice', input = {}) {
      const body = { ...PLANNER, message: 'hello', mode: 'async', ...input }
      return String((await json('/v1/agents', { as, body })).body['jobId'])
    },
    async claim(jobId) {
      const job = await database.agentJob.findUniqueOrThrow({ where: { id: jobId } })
      const claim = { jobId, token: `token-${jobId}`, deliverySeq: job.deliverySeq, workerId: 'test' }
      if ((await claimJob(database, claim)) === null) throw new Error(`${jobId} cannot be claimed`)
      return claim.token
    },
    async play(jobId, chunks) {
      played += 1
      await liveStreams.append(jobId, { generation: 1, attempt: 1, number: played, chunks })
      signals.publish(`live:${jobId}`, 'frames')
    },
    async storeStep(jobId, token, text) {
      const claim = { jobId, token }
      const usage = { inputTokens: 3, outputTokens: 2, reasoningTokens: 0, totalTokens: 5 }
      const output = { index: 0, generation: 1, parts: [], usage, finishReason: 'stop', elapsedMs: 10, inboxSeqs: [] }
      await storeModelOutput(database, claim, output)
      await storeWholeStep(database, claim, 0, [{ role: 'assistant', content: [{ type: 'text', text }] }])
    },
    async finish(jobId, token, ending = {}, parts) {
      const full: Ending = { state: 'completed', reason: 'completed', result: 'done', partial: false, ...ending }
      const job = { id: jobId, rootJobId: await rootOf(jobId) }
      const message = parts === undefined ? {} : { message: { parts } }
      if ((await finishAgent(stage.runtime, job, { guard: { token }, ending: full, ...message })) === null)
        throw new Error(`${jobId} had ended already`)
    },
    async close() {
      openRequests.end()
      await new Promise((resolve) => server.close(resolve).closeAllConnections())
      if (service !== undefined) {
        await runtime.close()
        await service.cut()
      }
      await stage.close()
    },
  }
}

/** The stage's own runtime, or one whose way to a service can be cut. */
async function openRuntimeOf(
  stage: TestStage,
  cuttable: 'DATABASE_URL' | 'REDIS_URL' | undefined,
): Promise<{ runtime: Runtime; service?: CuttableProxy }> {
  if (cuttable === undefined) return { runtime: stage.runtime }
  const service = await openCuttableProxy(stage.environment[cuttable] ?? '')
  const config = loadConfig({ ...stage.environment, [cuttable]: service.url })
  const extensions = createExtensions(config, {})
  return { service, runtime: openRuntime({ config, logger: stage.runtime.logger, extensions, name: 'api' }) }
}
