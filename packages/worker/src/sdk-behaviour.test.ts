// What the journal relies on in this version of the AI SDK. When one of these fails after an upgrade, the journal has
// to change with it.
import type { LanguageModelV4Content, LanguageModelV4GenerateResult } from '@ai-sdk/provider'
import {
  generateText,
  isStepCount,
  type ModelMessage,
  type StepResult,
  tool,
  ToolChoiceViolationError,
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

type Turn = LanguageModelV4Content[]

function output(content: Turn, unified?: 'length'): LanguageModelV4GenerateResult {
  const finish = content.some(({ type }) => type === 'tool-call') ? 'tool-calls' : 'stop'
  return { content, usage, finishReason: { unified: unified ?? finish, raw: undefined }, warnings: [] }
}

const callOf = (toolCallId: string, toolName = 'look'): LanguageModelV4Content => ({
  type: 'tool-call',
  toolCallId,
  toolName,
  input: '{"at":"it"}',
})

const textOf = (text: string): Turn => [{ type: 'text', text }]

/** A model that says this, one turn a call; the last one again and again. */
function modelOf(...turns: Turn[]): MockLanguageModelV4 {
  let turn = 0
  return new MockLanguageModelV4({ doGenerate: async () => output(turns[Math.min(turn++, turns.length - 1)] ?? []) })
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

type Settings = Partial<Omit<Parameters<typeof generateText>[0], 'model' | 'prompt'>>

async function run(model: MockLanguageModelV4, settings: Settings = {}): Promise<StepResult<ToolSet>[]> {
  const messages: ModelMessage[] = [{ role: 'user', content: 'hi' }]
  const { steps } = await generateText({ model, messages, maxRetries: 0, stopWhen: isStepCount(5), ...settings })
  return steps
}

test('COST-3: a tool starts once the model’s whole output has come through the middleware', async () => {
  const log: string[] = []
  const held = Promise.withResolvers<void>()
  const release = Promise.withResolvers<void>()
  const model = wrapLanguageModel({
    model: modelOf([callOf('call_1')], textOf('done')),
    middleware: {
      specificationVersion: 'v4',
      async wrapGenerate({ doGenerate }) {
        const result = await doGenerate()
        held.resolve()
        await release.promise
        log.push('output')
        return result
      },
    },
  }) as MockLanguageModelV4
  const running = run(model, { tools: { look: lookTool(() => log.push('execute')) } })
  await held.promise
  // Everything that could run by now has had many turns of the event loop to do so.
  for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setImmediate(resolve))
  expect(log).toEqual([])
  release.resolve()
  await running
  expect(log.slice(0, 2)).toEqual(['output', 'execute'])
})

test('the end of a model call is told with its parsed calls, good and bad, before a tool runs; then each tool’s end', async () => {
  const log: unknown[] = []
  const bad: LanguageModelV4Content = { type: 'tool-call', toolCallId: 'bad', toolName: 'look', input: '{"at":1}' }
  await run(modelOf([callOf('good'), bad], textOf('done')), {
    tools: { look: lookTool(() => log.push('execute')) },
    onLanguageModelCallEnd: ({ content }) =>
      void log.push(
        content.map((part) => (part.type === 'tool-call' ? [part.input, part.invalid === true] : part.type)),
      ),
    onToolExecutionEnd: ({ toolOutput }) => void log.push([toolOutput.type, toolOutput.toolCallId]),
    onStepEnd: () => void log.push('end'),
  })
  expect(log).toEqual([
    [
      [{ at: 'it' }, false],
      [{ at: 1 }, true],
    ],
    'execute',
    ['tool-result', 'good'],
    'end',
    ['text'],
    'end',
  ])
})

test('what the model’s call fails with is what the loop fails with', async () => {
  const error = new Error('reset')
  const model = new MockLanguageModelV4({ doGenerate: () => Promise.reject(error) })
  await expect(run(model)).rejects.toBe(error)
})

test('a call although tools are off fails the loop', async () => {
  const tools = { look: lookTool() }
  await expect(run(modelOf([callOf('call_1')]), { tools, toolChoice: 'none' })).rejects.toThrow(
    ToolChoiceViolationError,
  )
})

test('STATE-23: a tool call under finish reason length does not run and stays without a result', async () => {
  const called: string[] = []
  const model = new MockLanguageModelV4({ doGenerate: async () => output([callOf('call_1')], 'length') })
  const steps = await run(model, { tools: { look: lookTool((id) => called.push(id)) } })
  expect(called).toEqual([])
  expect(steps).toHaveLength(1)
  expect(steps[0]?.response.messages).toMatchObject([{ role: 'assistant', content: [{ type: 'tool-call' }] }])
})

test('messages that prepareStep returns carry forward into the next steps', async () => {
  const model = modelOf([callOf('call_1')], [callOf('call_2')], textOf('done'))
  await run(model, {
    tools: { look: lookTool() },
    prepareStep: ({ messages, stepNumber }) => ({
      messages: stepNumber === 1 ? [...messages, { role: 'user', content: 'hurry' }] : messages,
    }),
  })
  expect(model.doGenerateCalls.map(({ prompt }) => prompt.map(({ role }) => role))).toEqual([
    ['user'],
    ['user', 'assistant', 'tool', 'user'],
    ['user', 'assistant', 'tool', 'user', 'assistant', 'tool'],
  ])
})

test('the response messages of a step hold that step only', async () => {
  const steps = await run(modelOf([callOf('call_1')], textOf('done')), { tools: { look: lookTool() } })
  expect(steps.map((step) => step.response.messages.map(({ role }) => role))).toEqual([
    ['assistant', 'tool'],
    ['assistant'],
  ])
})

test('a tool without execute ends the loop once the other tools of its step have run, and stays without a result', async () => {
  const model = modelOf([callOf('call_a', 'spawnAgent'), callOf('call_b')])
  const steps = await run(model, {
    tools: { look: lookTool(), spawnAgent: { inputSchema: z.object({ at: z.string() }) } },
  })
  expect(model.doGenerateCalls).toHaveLength(1)
  const results = steps[0]?.response.messages.flatMap((message) =>
    message.role === 'tool' ? message.content.map((part) => 'toolCallId' in part && part.toolCallId) : [],
  )
  expect(results).toEqual(['call_b'])
})

test('an invalid call of a tool without execute is answered by the SDK, a valid one beside it stays open', async () => {
  const invalid: LanguageModelV4Content = {
    type: 'tool-call',
    toolCallId: 'bad',
    toolName: 'spawnAgent',
    input: '{"at":1}',
  }
  const steps = await run(modelOf([invalid, callOf('good', 'spawnAgent')]), {
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
  const model = modelOf([callOf('call_0')], [callOf('call_0')], textOf('done'))
  await run(model, { tools: { look: lookTool((id) => called.push(id)) } })
  expect(called).toEqual(['call_0', 'call_0'])
  expect(model.doGenerateCalls).toHaveLength(3)
})
