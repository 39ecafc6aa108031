// What the mock model says in the demo, so that it runs without a key: a plan with sub-agents in both modes. A real model
// gets the same request and decides by itself.
import type { ChatCompletionRequest, Fixture } from '@copilotkit/aimock'
import { z } from 'zod'
import { lastUserText, roundOf, textOf } from '@offshoot/testing/mock-request'

export const DEMO_REQUEST =
  'Prepare the launch note of our bicycle bell "Kling". ' +
  'Spawn forge/researcher in sync mode for three facts about bicycle bells. ' +
  'Side by side with it spawn forge/writer in async mode for a slogan (it will ask a researcher itself), ' +
  'and forge/task-runner in async mode to count from 1 to 2000, one number a line. ' +
  'Then check the writer (waitSeconds 30), check the task-runner, abort the task-runner, since nobody needs it, and answer with the note.'

type Call = { name: string; arguments: object }
type Said = { text?: string; calls?: Call[]; tokensPerSecond?: number }
type Scene = { when: (text: string) => boolean; turns: ((request: ChatCompletionRequest) => Said)[] }

const spawn = (botHandle: string, message: string, mode: 'sync' | 'async'): Call => ({
  name: 'spawnAgent',
  arguments: { bot: { botGroup: 'forge', botHandle }, message, mode },
})

const FACTS =
  'Three facts about bicycle bells: the first patent is of 1877; a good bell carries 100 metres; most are rung with the thumb.'
const COUNT = 'Count from 1 to 2000, one number a line.'
const SLOGAN = 'Write a slogan for the bicycle bell "Kling". Ask a researcher for one fact about its sound first.'

const ASK = /^Ask forge\/([a-z-]+) (.+)$/s

const SCENES: Scene[] = [
  {
    when: (text) => text === DEMO_REQUEST,
    turns: [
      () => ({
        text: 'I let a researcher find the facts, and a writer and a task-runner work beside it. ',
        calls: [
          spawn('researcher', 'Name three facts about bicycle bells.', 'sync'),
          spawn('writer', SLOGAN, 'async'),
          spawn('task-runner', COUNT, 'async'),
        ],
      }),
      (request) => ({
        text: 'The facts are here. Now I look at the others. ',
        calls: [
          { name: 'checkAgent', arguments: { jobId: jobIdOf(request, SLOGAN), waitSeconds: 30 } },
          { name: 'checkAgent', arguments: { jobId: jobIdOf(request, COUNT) } },
        ],
      }),
      (request) => ({
        text: 'The slogan is written; nobody needs the counting. ',
        calls: [{ name: 'abortAgent', arguments: { jobId: jobIdOf(request, COUNT), reason: 'not needed any more' } }],
      }),
      () => ({ text: `Kling: one ring, and the way is clear.\n\n${FACTS}` }),
    ],
  },
  {
    when: (text) => /three facts/i.test(text) && text !== DEMO_REQUEST && !ASK.test(text),
    turns: [() => ({ text: FACTS, tokensPerSecond: 30 })],
  },
  {
    when: (text) => text === SLOGAN,
    turns: [
      () => ({ calls: [spawn('researcher', 'Name one fact about the sound of a bicycle bell.', 'sync')] }),
      () => ({ text: 'Kling: one ring, and the way is clear.', tokensPerSecond: 20 }),
    ],
  },
  {
    when: (text) => text.startsWith('Name one fact'),
    turns: [() => ({ text: 'A bicycle bell rings at about 3,000 hertz.', tokensPerSecond: 20 })],
  },
  {
    when: (text) => text === COUNT,
    turns: [() => ({ text: Array.from({ length: 2000 }, (_, at) => at + 1).join('\n'), tokensPerSecond: 25 })],
  },
  {
    // What a host's own model might do: examples/host-script.ts asks like this.
    when: (text) => ASK.test(text),
    turns: [
      (request) => {
        const [, handle = '', task = ''] = ASK.exec(lastUserText(request)) ?? []
        return { calls: [spawn(handle, task, 'sync')] }
      },
      ({ messages }) => ({ text: `My sub-agent answers: ${outcomeOf(textOf(messages.at(-1)))}` }),
    ],
  },
]

/** The script as fixtures of aimock: one for each turn of each scene. */
export function demoFixtures(): Fixture[] {
  return SCENES.flatMap(({ when, turns }) =>
    turns.map((say, turn): Fixture => {
      const { tokensPerSecond = 60 } = turn === turns.length - 1 ? say(NO_REQUEST) : {}
      return {
        match: { predicate: (request) => when(lastUserText(request)) && roundOf(request) === turn },
        response: (request) => toResponse(say(request), request),
        chunkSize: 6,
        streamingProfile: { ttft: 150, tps: tokensPerSecond },
      }
    }),
  )
}

const NO_REQUEST: ChatCompletionRequest = { model: '', messages: [] }

function toResponse({ text = '', calls = [] }: Said, request: ChatCompletionRequest) {
  const usage = {
    input_tokens: Math.ceil(JSON.stringify(request.messages).length / 4),
    output_tokens: Math.ceil((text.length + JSON.stringify(calls).length) / 4),
  }
  const toolCalls = calls.map((call) => ({ name: call.name, arguments: JSON.stringify(call.arguments) }))
  return toolCalls.length === 0 ? { content: text, usage } : { content: text, toolCalls, usage }
}

/** The result or the error in what a spawn call has answered. */
function outcomeOf(answer: string): string {
  const { result, error } = z
    .object({ result: z.string().nullish(), error: z.string().nullish() })
    .catch({})
    .parse(parseJson(answer))
  return result ?? error ?? answer
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** The job that the spawn call with this message has started: found by its call's result. */
function jobIdOf({ messages }: ChatCompletionRequest, message: string): string {
  const call = messages
    .flatMap((each) => each.tool_calls ?? [])
    .find((each) => each.function.arguments.includes(JSON.stringify(message)))
  const result = messages.find((each) => each.role === 'tool' && each.tool_call_id === call?.id)
  return /"jobId":"([^"]+)"/.exec(textOf(result))?.[1] ?? ''
}
