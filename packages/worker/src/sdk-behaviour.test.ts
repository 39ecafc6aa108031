// What the journal relies on in this version of the AI SDK. When one of these fails after an upgrade, the journal has
// to change with it.
import type { LanguageModelV4StreamPart, LanguageModelV4StreamResult } from '@ai-sdk/provider'
import {
  isStepCount,
  type LanguageModelMiddleware,
  type ModelMessage,
  type StepResult,
  streamText,
  tool,
  type ToolSet,
  wrapLanguageModel,
} from 'ai'
import { MockLanguageModelV4 } from 'ai/test'
import { expect, test } from 'vitest'
import { z } from 'zod'

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
}

function finish(unified: 'stop' | 'tool-calls' | 'length'): LanguageModelV4StreamPart {
  return { type: 'finish', usage, finishReason: { unified, raw: undefined } }
}

const callOf = (toolCallId: string, toolName = 'look'): LanguageModelV4StreamPart => ({
  type: 'tool-call',
  toolCallId,
  toolName,
  input: '{"at":"it"}',
})

const textOf = (text: string): LanguageModelV4StreamPart[] => [
  { type: 'text-start', id: 't' },
  { type: 'text-delta', id: 't', delta: text },
  { type: 'text-end', id: 't' },
]

/** A model that says these parts, one list a call; the last one again and again. */
function modelOf(...turns: LanguageModelV4StreamPart[][]): MockLanguageModelV4 {
  let turn = 0
  return new MockLanguageModelV4({
    doStream: async (): Promise<LanguageModelV4StreamResult> => ({
      stream: ReadableStream.from(turns[Math.min(turn++, turns.length - 1)] ?? []),
    }),
  })
}

function lookTool(onCall: (toolCallId: string) => void = () => undefined) {
  return tool({
    inputSchema: z.object({ at: z.string() }),
    execute: async (_, { toolCallId }) => {
      onCall(toolCallId)
      return 'seen'
    },
  })
}

interface Run {
  model: MockLanguageModelV4
  middleware?: LanguageModelMiddleware[]
  tools?: ToolSet
  messages?: ModelMessage[]
  prepareStep?: (step: { messages: ModelMessage[]; stepNumber: number }) => { messages: ModelMessage[] }
}

async function run({ model, middleware = [], tools = {}, messages, prepareStep }: Run): Promise<StepResult<ToolSet>[]> {
  const result = streamText({
    model: wrapLanguageModel({ model, middleware }),
    messages: messages ?? [{ role: 'user', content: 'hi' }],
    tools,
    maxRetries: 0,
    stopWhen: isStepCount(5),
    onError: () => undefined,
    ...(prepareStep === undefined ? {} : { prepareStep }),
  })
  for await (const part of result.stream) void part
  return result.steps
}

/** Holds `finish` back until `release` is called. */
function holdFinish(log: string[], held: () => Promise<void>): LanguageModelMiddleware {
  return {
    specificationVersion: 'v4',
    async wrapStream({ doStream }) {
      const result = await doStream()
      return {
        ...result,
        stream: result.stream.pipeThrough(
          new TransformStream({
            async transform(part, controller) {
              if (part.type === 'finish') await held()
              log.push(part.type)
              controller.enqueue(part)
            },
          }),
        ),
      }
    },
  }
}

test('COST-3: a tool starts at the stream’s finish part, not at its tool-call part', async () => {
  const log: string[] = []
  let hold = true
  const finishHeld = Promise.withResolvers<void>()
  const release = Promise.withResolvers<void>()
  const middleware = holdFinish(log, async () => {
    if (!hold) return
    hold = false
    finishHeld.resolve()
    await release.promise
  })
  const running = run({
    model: modelOf([callOf('call_1'), finish('tool-calls')], [...textOf('done'), finish('stop')]),
    middleware: [middleware],
    tools: { look: lookTool(() => log.push('execute')) },
  })
  await finishHeld.promise
  // Everything that could run by now has had many turns of the event loop to do so.
  for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setImmediate(resolve))
  expect(log).toEqual(['tool-call'])
  release.resolve()
  await running
  expect(log.slice(0, 3)).toEqual(['tool-call', 'finish', 'execute'])
})

test('STATE-23: a tool call under finish reason length does not run and stays without a result', async () => {
  const called: string[] = []
  const steps = await run({
    model: modelOf([callOf('call_1'), finish('length')]),
    tools: { look: lookTool((id) => called.push(id)) },
  })
  expect(called).toEqual([])
  expect(steps).toHaveLength(1)
  expect(steps[0]?.response.messages).toMatchObject([{ role: 'assistant', content: [{ type: 'tool-call' }] }])
})

test('COST-3: stored parts that a middleware plays back make no provider call and keep their tool call ids', async () => {
  const called: string[] = []
  const model = modelOf([...textOf('done'), finish('stop')])
  let played = false
  const playBack: LanguageModelMiddleware = {
    specificationVersion: 'v4',
    async wrapStream({ doStream }) {
      if (played) return doStream()
      played = true
      return { stream: ReadableStream.from([callOf('call_a'), callOf('call_b'), finish('tool-calls')]) }
    },
  }
  const steps = await run({
    model,
    middleware: [playBack],
    tools: { look: lookTool((id) => called.push(id)) },
  })
  expect(called).toEqual(['call_a', 'call_b'])
  expect(model.doStreamCalls).toHaveLength(1)
  expect(steps).toHaveLength(2)
})

test('the first middleware is the outer one', async () => {
  const log: string[] = []
  const named = (name: string): LanguageModelMiddleware => ({
    specificationVersion: 'v4',
    async wrapStream({ doStream }) {
      log.push(`${name} before`)
      const result = await doStream()
      log.push(`${name} after`)
      return result
    },
  })
  await run({ model: modelOf([...textOf('hi'), finish('stop')]), middleware: [named('first'), named('second')] })
  expect(log).toEqual(['first before', 'second before', 'second after', 'first after'])
})

test('messages that prepareStep returns carry forward into the next steps', async () => {
  const model = modelOf(
    [callOf('call_1'), finish('tool-calls')],
    [callOf('call_2'), finish('tool-calls')],
    [...textOf('done'), finish('stop')],
  )
  await run({
    model,
    tools: { look: lookTool() },
    prepareStep: ({ messages, stepNumber }) => ({
      messages: stepNumber === 1 ? [...messages, { role: 'user', content: 'hurry' }] : messages,
    }),
  })
  expect(model.doStreamCalls.map(({ prompt }) => prompt.map(({ role }) => role))).toEqual([
    ['user'],
    ['user', 'assistant', 'tool', 'user'],
    ['user', 'assistant', 'tool', 'user', 'assistant', 'tool'],
  ])
})

test('the response messages of a step hold that step only', async () => {
  const steps = await run({
    model: modelOf([callOf('call_1'), finish('tool-calls')], [...textOf('done'), finish('stop')]),
    tools: { look: lookTool() },
  })
  expect(steps.map((step) => step.response.messages.map(({ role }) => role))).toEqual([
    ['assistant', 'tool'],
    ['assistant'],
  ])
})

test('a tool without execute ends the loop once the other tools of its step have run, and stays without a result', async () => {
  const model = modelOf([callOf('call_a', 'spawnAgent'), callOf('call_b'), finish('tool-calls')])
  const steps = await run({
    model,
    tools: { look: lookTool(), spawnAgent: { inputSchema: z.object({ at: z.string() }) } },
  })
  expect(model.doStreamCalls).toHaveLength(1)
  const results = steps[0]?.response.messages.flatMap((message) =>
    message.role === 'tool' ? message.content.map((part) => 'toolCallId' in part && part.toolCallId) : [],
  )
  expect(results).toEqual(['call_b'])
})

test('an invalid call of a tool without execute is answered by the SDK, a valid one beside it stays open', async () => {
  const invalid: LanguageModelV4StreamPart = {
    type: 'tool-call',
    toolCallId: 'bad',
    toolName: 'spawnAgent',
    input: '{"at":1}',
  }
  const steps = await run({
    model: modelOf([invalid, callOf('good', 'spawnAgent'), finish('tool-calls')]),
    tools: { spawnAgent: { inputSchema: z.object({ at: z.string() }) } },
  })
  expect(steps).toHaveLength(1)
  const results = steps[0]?.response.messages.flatMap((message) =>
    message.role === 'tool' ? message.content.map((part) => 'toolCallId' in part && part.toolCallId) : [],
  )
  expect(results).toEqual(['bad'])
})

test('STATE-10: tool calls with the same id in two steps both run', async () => {
  const called: string[] = []
  const model = modelOf(
    [callOf('call_0'), finish('tool-calls')],
    [callOf('call_0'), finish('tool-calls')],
    [...textOf('done'), finish('stop')],
  )
  await run({ model, tools: { look: lookTool((id) => called.push(id)) } })
  expect(called).toEqual(['call_0', 'call_0'])
  expect(model.doStreamCalls).toHaveLength(3)
})

test('an async generator as execute gives preliminary results and then its last value', async () => {
  const seen: unknown[] = []
  const result = streamText({
    model: modelOf([callOf('call_1'), finish('tool-calls')], [...textOf('done'), finish('stop')]),
    messages: [{ role: 'user', content: 'hi' }],
    stopWhen: isStepCount(5),
    tools: {
      look: tool({
        inputSchema: z.object({ at: z.string() }),
        async *execute() {
          yield 'one'
          yield 'two'
        },
      }),
    },
  })
  for await (const part of result.stream)
    if (part.type === 'tool-result') seen.push([part.output, part.preliminary === true])
  expect(seen).toEqual([
    ['one', true],
    ['two', true],
    ['two', false],
  ])
})
