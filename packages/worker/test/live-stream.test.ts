// What viewers see of a job, and that it is what is stored.
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { customProvider, jsonSchema, readUIMessageStream, tool, type UIMessage, type UIMessageChunk } from 'ai'
import { MockLanguageModelV4 } from 'ai/test'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { followAgent } from '@offshoot/shared/operations/follow-agent'
import type { AiTool } from '@offshoot/shared/tools/registry'
import {
  abort,
  answerOf,
  endOf,
  liveTextOf,
  runRoot,
  spawnOf,
  spawnRoot,
  untilLiveText,
} from '@offshoot/testing/agents'
import { callsTool, type RawModel, says, startRawModel, ticking } from '@offshoot/testing/raw-model'
import { redisCommand } from '@offshoot/testing/redis-command'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const failingTool: AiTool = {
  id: 'fail',
  group: 'test',
  userSelect: true,
  tool: tool({
    inputSchema: jsonSchema<object>({ type: 'object' }),
    execute: async (): Promise<string> => {
      throw new Error('the disk is full')
    },
  }),
}

/** Says a text whose last words come with its end in one piece, and right after its first; asked to look, it calls a tool. */
const hastyModel = new MockLanguageModelV4({
  doStream: async ({ prompt }) => ({
    stream: new ReadableStream<LanguageModelV4StreamPart>({
      async start(controller) {
        controller.enqueue({ type: 'text-start', id: 't' })
        controller.enqueue({ type: 'text-delta', id: 't', delta: 'first ' })
        await new Promise((resolve) => setTimeout(resolve, 25))
        for (const delta of ['and ', 'last']) controller.enqueue({ type: 'text-delta', id: 't', delta })
        controller.enqueue({ type: 'text-end', id: 't' })
        const looks = prompt.at(-1)?.role === 'user' && JSON.stringify(prompt).includes('look')
        const call = { toolCallId: 'call_look', toolName: 'checkAgent', input: '{"jobId":"nothing"}' }
        if (looks) controller.enqueue({ type: 'tool-call', ...call })
        controller.enqueue({
          type: 'finish',
          finishReason: { unified: looks ? 'tool-calls' : 'stop', raw: undefined },
          usage: {
            inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
            outputTokens: { total: 1, text: 1, reasoning: 0 },
          },
        })
        controller.close()
      },
    }),
  }),
})

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  const providers = { hasty: () => customProvider({ languageModels: { model: hastyModel } }) }
  stage = await openWorkerStage(raw.baseUrl, { extensions: { tools: [failingTool], providers } })
  await stage.putBot('bot', { toolNames: ['spawnAgent', 'checkAgent', 'fail'] })
  await stage.putBot('hasty', { integration: 'hasty', modelName: 'model', toolNames: ['checkAgent'] })
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

/** All frames of a job, to its end. */
async function framesOf(jobId: string): Promise<UIMessageChunk[]> {
  const chunks: UIMessageChunk[] = []
  for await (const { seq, chunk } of followAgent(stage.runtime, jobId, { signal: AbortSignal.timeout(20_000) })) {
    expect(seq).toBe(chunks.length + 1)
    chunks.push(chunk)
  }
  return chunks
}

/** The message that a viewer has built when the frames are over. */
async function messageOf(frames: UIMessageChunk[]): Promise<UIMessage | undefined> {
  let last: UIMessage | undefined
  const stream = ReadableStream.from(frames)
  for await (const message of readUIMessageStream({ stream, onError: () => undefined })) last = message
  return last
}

/** Text frames come in as many batches as the clock makes of them. */
const withoutDeltas = (frames: UIMessageChunk[]) =>
  frames.map(({ type }) => type).filter((type) => !type.endsWith('-delta'))

test('STATE-22: frames come in order, from start to one end', async () => {
  raw.answer('two steps', callsTool('checkAgent', { jobId: 'nothing' }), (reply) => {
    for (const word of ['It ', 'is ', 'done.']) reply.text(word)
    reply.finish()
  })
  const job = await spawnRoot(stage, 'bot', 'two steps')
  const frames = await framesOf(job.id)
  expect(withoutDeltas(frames)).toEqual([
    'start',
    'start-step',
    'tool-input-start',
    'tool-input-available',
    'tool-output-available',
    'finish-step',
    'start-step',
    'text-start',
    'text-end',
    'finish-step',
    'finish',
  ])
  expect(frames[0]).toEqual({ type: 'start', messageId: job.id })
  expect(frames.flatMap((chunk) => (chunk.type === 'text-delta' ? [chunk.delta] : [])).join('')).toBe('It is done.')
})

test('STATE-22: what a model says last, right before its end, comes before the end of the job', async () => {
  for (let jobs = 0; jobs < 5; jobs += 1) {
    const job = await runRoot(stage, 'hasty', 'go')
    expect(job).toMatchObject({ state: 'completed', result: 'first and last' })
    const frames = await framesOf(job.id)
    expect(frames.flatMap((chunk) => (chunk.type === 'text-delta' ? [chunk.delta] : [])).join('')).toBe(job.result)
    expect(withoutDeltas(frames).slice(-3)).toEqual(['text-end', 'finish-step', 'finish'])
  }
})

test('what a model has said reaches viewers before it is stored, after which no attempt says it again', async () => {
  const { groups } = stage.runtime
  const { storeOutput, end } = groups
  const seen: string[] = []
  groups.storeOutput = async (output) => {
    seen.push(await liveTextOf(stage, output.claim.jobId))
    return storeOutput(output)
  }
  groups.end = async (ending) => {
    seen.push(await liveTextOf(stage, ending.job.id))
    return end(ending)
  }
  try {
    for (let jobs = 0; jobs < 5; jobs += 1) await runRoot(stage, 'hasty', 'look')
  } finally {
    Object.assign(groups, { storeOutput, end })
  }
  expect(seen).toEqual(Array.from({ length: 10 }, () => 'first and last'))
})

test('the stored message is what the frames build', async () => {
  raw.answer(
    'all kinds',
    (reply) => {
      reply.text('First I look. ')
      reply.call('checkAgent', { jobId: 'nothing' }, 'call_look')
      reply.call('spawnAgent', spawnOf('bot', 'all kinds: child'), 'call_spawn')
      reply.call('spawnAgent', spawnOf('nobody', 'x'), 'call_refused')
      reply.call('teleport', {}, 'call_unknown')
      reply.call('fail', {}, 'call_fail')
      reply.finish()
    },
    says('That is it.'),
  )
  raw.answer('all kinds: child', says('from the child'))
  const job = await runRoot(stage, 'bot', 'all kinds')
  expect(job).toMatchObject({ state: 'completed', attempt: 2 })
  const message = await messageOf(await framesOf(job.id))
  const stored = await answerOf(stage, job.id)
  expect(message?.id).toBe(job.id)
  expect(message?.parts.map(shortPart)).toEqual(stored.map(shortPart))
})

test('a call that is not run is closed for viewers, too', async () => {
  raw.answer('cut off', (reply) => {
    reply.call('spawnAgent', spawnOf('bot', 'x'), 'call_cut')
    reply.finish({ incomplete: 'max_output_tokens' })
  })
  const job = await runRoot(stage, 'bot', 'cut off')
  const message = await messageOf(await framesOf(job.id))
  expect(message?.parts.map(shortPart)).toEqual((await answerOf(stage, job.id)).map(shortPart))
})

test('a job that waited announces its next attempt, and shows no step twice', async () => {
  raw.answer('wait once', callsTool('spawnAgent', spawnOf('bot', 'wait once: child')), says('over'))
  raw.answer('wait once: child', says('here'))
  const job = await runRoot(stage, 'bot', 'wait once')
  const frames = await framesOf(job.id)
  expect(withoutDeltas(frames)).toEqual([
    'start',
    'start-step',
    'tool-input-start',
    'tool-input-available',
    'finish-step',
    'data-attempt',
    'tool-output-available',
    'start-step',
    'text-start',
    'text-end',
    'finish-step',
    'finish',
  ])
  expect(frames.find(({ type }) => type === 'data-attempt')).toEqual({
    type: 'data-attempt',
    transient: true,
    data: { generation: 1, attempt: 2, fromStep: 1 },
  })
})

test('STUCK-13: an aborted and a failed job end with one terminal frame, and with the text so far', async () => {
  raw.answer('stop me', ticking)
  const aborted = await spawnRoot(stage, 'bot', 'stop me')
  await untilLiveText(stage, aborted.id, 'tick')
  await abort(stage, aborted.id)
  const abortFrames = await framesOf(aborted.id)
  expect(withoutDeltas(abortFrames).slice(-2)).toEqual(['abort', 'finish'])
  const { result } = await endOf(stage, aborted.id)
  expect(abortFrames.flatMap((chunk) => (chunk.type === 'text-delta' ? [chunk.delta] : [])).join('')).toBe(result)

  raw.answer('break', (reply) => reply.status(401, { message: 'key sk-1' }))
  const failed = await runRoot(stage, 'bot', 'break')
  const failFrames = await framesOf(failed.id)
  expect(failFrames.slice(-2)).toEqual([
    { type: 'error', errorText: 'The model provider refused our credentials. (status 401)' },
    { type: 'finish', finishReason: 'error' },
  ])
  expect(failFrames.filter(({ type }) => type === 'finish')).toHaveLength(1)
})

test('STATE-7: frames of an attempt that is over reach no viewer', async () => {
  raw.answer('wait again', callsTool('spawnAgent', spawnOf('bot', 'wait again: child')), says('over'))
  raw.answer('wait again: child', says('here'))
  const job = await runRoot(stage, 'bot', 'wait again')
  const before = await framesOf(job.id)
  const stale = { generation: 1, attempt: 1, number: 99, chunks: [{ type: 'start-step' as const }] }
  expect(await stage.runtime.liveStreams.append(job.id, stale)).toBe(false)
  expect(await framesOf(job.id)).toEqual(before)
})

test('STUCK-13: a viewer that comes after the live stream is gone gets a terminal frame from the row', async () => {
  raw.answer('forgotten', says('done'))
  const job = await runRoot(stage, 'bot', 'forgotten')
  await stage.runtime.database.agentJob.update({
    where: { id: job.id },
    data: { finishedAt: new Date(Date.now() - 3_600_000) },
  })
  const base = stage.config.QUEUE_PREFIX.replaceAll(/[{}]/g, '')
  await redisCommand(stage.config.REDIS_URL ?? '', 'DEL', `${base}:live:{${job.id}}`)
  expect(await framesOf(job.id)).toEqual([{ type: 'finish', finishReason: 'stop' }])
})

/** A part without what only one side knows: provider metadata, and whether its text is over. */
function shortPart(part: UIMessage['parts'][number]): unknown {
  const { type } = part
  if ('text' in part) return { type, text: part.text }
  if (!('toolCallId' in part)) return { type }
  return {
    type,
    toolCallId: part.toolCallId,
    state: part.state,
    input: part.input,
    ...(part.state === 'output-available' ? { output: part.output } : {}),
    ...(part.state === 'output-error' ? { errorText: part.errorText } : {}),
  }
}
