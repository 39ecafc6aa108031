import { LLMock } from '@copilotkit/aimock'
import { lastUserText, textOf } from '@offshoot/testing/mock-request'
import { demoFixtures } from './demo-script.ts'

/**
 * Starts a model that speaks OpenAI's protocol on a free port of 127.0.0.1. It plays the demo's script, and answers every
 * other call with a sentence about what it was asked, streamed in small pieces. `baseUrl` is what OPENAI_BASE_URL expects;
 * any key will do.
 */
export async function startMockModel(): Promise<{ baseUrl: string; stop(): Promise<void> }> {
  const mock = new LLMock({ port: 0, host: '127.0.0.1' })
  mock.addFixtures(demoFixtures())
  mock.on(
    {},
    (request) => {
      const content = `You asked: "${shorten(lastUserText(request))}". This answer comes from the mock model; set OPENAI_API_KEY for a real one.`
      return { content, usage: usage(request.messages.map(textOf).join(' '), content) }
    },
    { chunkSize: 12, streamingProfile: { ttft: 50, tps: 50 } },
  )
  await mock.start()
  return { baseUrl: `${mock.url}/v1`, stop: () => mock.stop() }
}

function shorten(text: string) {
  return text.length > 200 ? `${text.slice(0, 200)}…` : text
}

/** About four characters a token; without this the mock reports none. */
function usage(input: string, output: string) {
  return { input_tokens: Math.ceil(input.length / 4), output_tokens: Math.ceil(output.length / 4) }
}
