// The agent of the baselines: what a product would write without Offshoot, one `streamText`.
import { createOpenAI } from '@ai-sdk/openai'
import { streamText } from 'ai'

export function createBareAgent(modelUrl: string) {
  const openai = createOpenAI({ baseURL: `${modelUrl}/v1`, apiKey: 'mock' })
  /** Runs it to its end. `onText` gets each delta. */
  return async function runBareAgent(message: string, onText: (delta: string) => void = () => undefined) {
    const result = streamText({
      model: openai('gpt-5'),
      instructions: 'You are agent.',
      messages: [{ role: 'user', content: message }],
      providerOptions: { openai: { store: false } },
      onError: () => undefined,
    })
    let text = ''
    for await (const part of result.stream) {
      if (part.type === 'error') throw part.error
      if (part.type !== 'text-delta') continue
      text += part.text
      onText(part.text)
    }
    return text
  }
}
