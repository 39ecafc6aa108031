// Calls of MCP tools that a lost worker had made, or had been about to make.
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import type { McpServer } from '@offshoot/shared/contracts/bot'
import { storeModelOutput, storeWholeStep } from '@offshoot/shared/db/journal'
import { handBack } from '@offshoot/shared/operations/hand-back'
import { answerOf, endOf, spawnRoot } from '@offshoot/testing/agents'
import { claimNext, claimOf } from '@offshoot/testing/jobs-without-worker'
import { type McpProcess, startMcpProcess } from '@offshoot/testing/mcp-process'
import { callsTool, type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { openTestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { startWorker } from '../src/worker.ts'
import { openSystemStage, type SystemStage } from './system-stage.ts'

let stage: SystemStage
let mcp: McpProcess

beforeAll(async () => {
  mcp = await startMcpProcess()
  stage = await openSystemStage()
  await stage.putBot('served', { toolNames: [], mcpServers: [{ name: 'kit', url: mcp.url }] })
})
beforeEach(() => stage.fleet.replenish())
afterAll(async () => {
  await stage.close()
  await mcp.stop()
})

/** What the model reads of its calls, in the last request with that message. */
function outputsOf(raw: RawModel, message: string): unknown[] {
  const { input } = raw.requests(message).at(-1)?.body ?? {}
  const items: { type?: string; output?: unknown }[] = Array.isArray(input) ? input : []
  return items.filter((item) => item.type === 'function_call_output').map(({ output }) => output)
}

function call(toolCallId: string, toolName: string): LanguageModelV4StreamPart {
  return { type: 'tool-call', toolCallId, toolName, input: '{"text":"again"}' }
}

test('COST-3: a call that was under way when its worker was killed is reported as unknown, and not made again', async () => {
  stage.raw.answer('outlive the worker', callsTool('kit_slow', { text: 'cut' }), says('looked at'))
  const { id } = await spawnRoot(stage, 'served', 'outlive the worker')
  await waitUntil(async () => (await mcp.counts()).slow['cut'] === 'running')
  const worker = await stage.fleet.workerOf(id)
  worker.kill('SIGKILL')
  await worker.exited
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'looked at', attempt: 2 })
  expect(outputsOf(stage.raw, 'outlive the worker')).toEqual([
    expect.stringContaining('The outcome of this call of kit_slow is unknown: the process that ran it was lost.'),
  ])
  // The session of the killed worker is the server's to end; the second attempt has closed its own.
  await waitUntil(async () => (await mcp.counts()).sessions === 1)
  expect((await mcp.counts()).opened).toBe(2)
})

test('a drain in the middle of a call closes the session, too', async () => {
  const before = (await mcp.counts()).sessions
  stage.raw.answer('drain', callsTool('kit_slow', { text: 'drained' }), says('went on'))
  const { id } = await spawnRoot(stage, 'served', 'drain')
  await waitUntil(async () => (await mcp.counts()).slow['drained'] === 'running')
  const worker = await stage.fleet.workerOf(id)
  await worker.stop()
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'went on' })
  await waitUntil(async () => (await mcp.counts()).sessions === before)
})

/** A stage on which an attempt has stored a first step, and no worker has gone on from there yet. */
async function stageWithStep(message: string, mcpServers: McpServer[], parts: LanguageModelV4StreamPart[]) {
  const raw = await startRawModel()
  const alone = await openTestStage({ environment: { OPENAI_BASE_URL: raw.baseUrl } })
  await alone.putBot('served', { toolNames: [], mcpServers })
  const { id } = await spawnRoot(alone, 'served', message)
  const claimed = await claimNext(alone.runtime, id)
  const finishReason = parts.some(({ type }) => type === 'tool-call') ? 'tool-calls' : 'stop'
  const usage = {
    inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: 1, text: 1, reasoning: 0 },
  }
  await storeModelOutput(alone.runtime.database, claimOf(claimed), {
    index: 0,
    generation: 1,
    parts: [...parts, { type: 'finish', finishReason: { unified: finishReason, raw: undefined }, usage }],
    usage: { inputTokens: 1, outputTokens: 1, reasoningTokens: 0, totalTokens: 2 },
    finishReason,
    elapsedMs: 1,
    inboxSeqs: [],
  })
  return { raw, alone, claimed }
}

test('a stored call that was not made before, of a tool that is not there now, is answered; the model is not offered it', async () => {
  const servers = [
    { name: 'kit', url: mcp.url },
    { name: 'gone', url: 'http://127.0.0.1:9/mcp' },
  ]
  const { raw, alone, claimed } = await stageWithStep('what is left', servers, [
    call('call_0', 'gone_search'),
    call('call_1', 'kit_retired'),
    call('call_2', 'kit_echo'),
    call('call_3', 'other_tool'),
  ])
  raw.answer('what is left', says('went on'))
  await handBack(alone.runtime, claimed, claimOf(claimed), 'handed-back')
  const worker = await startWorker(alone.runtime)
  expect(await endOf(alone, claimed.id)).toMatchObject({ state: 'completed', result: 'went on', steps: 2 })
  expect(await answerOf(alone, claimed.id)).toMatchObject([
    { type: 'step-start' },
    { errorText: 'Error: The MCP server "gone" does not answer. The call of gone_search was not made.' },
    { errorText: 'Error: The MCP server "kit" does not offer kit_retired any more. The call was not made.' },
    { type: 'tool-kit_echo', state: 'output-available' },
    { state: 'output-error', errorText: expect.stringContaining('other_tool') },
    { type: 'step-start' },
    { type: 'text', text: 'went on' },
  ])
  const offered = raw.requests('what is left')[0]?.body['tools']
  const names = Array.isArray(offered) ? offered.map(({ name }: { name: string }) => name) : []
  expect(names).toContain('kit_echo')
  expect(names).not.toContain('kit_retired')
  expect(names.filter((name) => name.startsWith('gone_'))).toEqual([])
  await worker.drain()
  await alone.close()
  await raw.stop()
})

test('an attempt that needs nothing more of the model connects to no server', async () => {
  const { raw, alone, claimed } = await stageWithStep(
    'all said',
    [{ name: 'kit', url: mcp.url }],
    [
      { type: 'text-start', id: 't' },
      { type: 'text-delta', id: 't', delta: 'said before' },
      { type: 'text-end', id: 't' },
    ],
  )
  const whole = [{ role: 'assistant' as const, content: [{ type: 'text' as const, text: 'said before' }] }]
  await storeWholeStep(alone.runtime.database, claimOf(claimed), 0, whole)
  const { opened } = await mcp.counts()
  await handBack(alone.runtime, claimed, claimOf(claimed), 'handed-back')
  const worker = await startWorker(alone.runtime)
  expect(await endOf(alone, claimed.id)).toMatchObject({ state: 'completed', result: 'said before', attempt: 2 })
  expect((await mcp.counts()).opened).toBe(opened)
  expect(raw.requests()).toEqual([])
  await worker.drain()
  await alone.close()
  await raw.stop()
})
