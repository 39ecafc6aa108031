// A model that speaks OpenAI's protocol over HTTP and says what a test tells it to.
import { type ChatCompletionRequest, type Fixture, LLMock } from '@copilotkit/aimock'
import { lastUserText, roundOf } from './mock-request.ts'

export interface MockCall {
  name: string
  arguments: unknown
  id?: string
}

export interface MockAnswer {
  text?: string
  calls?: MockCall[]
  usage?: { input: number; output: number }
  /** An error instead of an answer. */
  status?: number
  retryAfterSeconds?: number
  /** Milliseconds to the first token, and tokens a second. */
  pace?: { ttft: number; tps: number }
  /** Resets the connection in mid-stream. */
  disconnectAfterMs?: number
}

export interface MockModel {
  /** To be set as `OPENAI_BASE_URL`. */
  baseUrl: string
  /**
   * What the model answers when the last user message is (or matches) `message`: the n-th answer after n rounds of tool
   * results since then; after the last one, the last one again.
   */
  answer(message: string | RegExp, turns: (string | MockAnswer)[]): void
  /** How often the model was called with that last user message. */
  calls(message?: string | RegExp): number
  /** The requests with that last user message, as the provider sent them (Chat Completions form). */
  requests(message: string | RegExp): ChatCompletionRequest[]
  stop(): Promise<void>
}

export async function startMockModel(): Promise<MockModel> {
  const mock = new LLMock({ port: 0, host: '127.0.0.1' })
  await mock.start()
  const requests = (message?: string | RegExp) =>
    mock
      .getRequests()
      .map((entry) => entry.body)
      .filter(isChatRequest)
      .filter((request) => message === undefined || matches(message, request))
  return {
    baseUrl: `${mock.url}/v1`,
    answer(message, turns) {
      for (const [turn, answer] of turns.entries()) {
        const isTurn = (request: ChatCompletionRequest) => {
          const round = roundOf(request)
          return round === turn || (turn === turns.length - 1 && round > turn)
        }
        mock.addFixture(
          fixtureOf(
            typeof answer === 'string' ? { text: answer } : answer,
            (request) => matches(message, request) && isTurn(request),
          ),
        )
      }
    },
    calls: (message) => requests(message).length,
    requests,
    stop: () => mock.stop(),
  }
}

function fixtureOf(answer: MockAnswer, predicate: (request: ChatCompletionRequest) => boolean): Fixture {
  const { text, calls, usage, status, retryAfterSeconds, pace, disconnectAfterMs } = answer
  const settings = {
    ...(pace === undefined ? {} : { streamingProfile: pace, chunkSize: 4 }),
    ...(disconnectAfterMs === undefined ? {} : { disconnectAfterMs }),
  }
  if (status !== undefined) {
    const error = { message: 'the mock refuses', type: 'mock_error' }
    return {
      match: { predicate },
      response: { error, status, ...(retryAfterSeconds === undefined ? {} : { retryAfter: retryAfterSeconds }) },
      ...settings,
    }
  }
  const toolCalls = calls?.map((call) => ({
    name: call.name,
    arguments: JSON.stringify(call.arguments),
    ...(call.id === undefined ? {} : { id: call.id }),
  }))
  const said = {
    ...(text === undefined ? {} : { content: text }),
    ...(toolCalls === undefined ? {} : { toolCalls }),
    ...(usage === undefined
      ? {}
      : {
          usage: { input_tokens: usage.input, output_tokens: usage.output, total_tokens: usage.input + usage.output },
        }),
  }
  return { match: { predicate }, response: said, ...settings }
}

function isChatRequest(body: object | null): body is ChatCompletionRequest {
  return body !== null && 'messages' in body
}

function matches(message: string | RegExp, request: ChatCompletionRequest): boolean {
  const last = lastUserText(request)
  return typeof message === 'string' ? last === message : message.test(last)
}
