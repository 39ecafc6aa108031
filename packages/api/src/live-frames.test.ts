import { readUIMessageStream, type UIMessage, type UIMessageChunk } from 'ai'
import { expect, test } from 'vitest'
import { snapshotChunks } from './live-frames.ts'

test('a snapshot builds the stored parts again', async () => {
  const parts: UIMessage['parts'] = [
    { type: 'step-start' },
    { type: 'reasoning', text: 'let me see', state: 'done' },
    { type: 'text', text: 'I look it up.', state: 'done' },
    { type: 'tool-search', toolCallId: 'a', state: 'output-available', input: { for: 'it' }, output: { found: 1 } },
    { type: 'tool-search', toolCallId: 'b', state: 'output-error', input: {}, errorText: 'no such page' },
    { type: 'step-start' },
    { type: 'file', mediaType: 'image/png', url: 'data:image/png;base64,AA==' },
    { type: 'text', text: 'Here it is.', state: 'done' },
  ]
  const chunks: UIMessageChunk[] = [{ type: 'start', messageId: 'm' }, ...snapshotChunks(parts), { type: 'finish' }]
  let message: UIMessage | undefined
  for await (message of readUIMessageStream({ stream: ReadableStream.from(chunks) }));
  expect(message?.id).toBe('m')
  expect(message?.parts).toHaveLength(parts.length)
  for (const [at, part] of parts.entries()) expect(message?.parts[at]).toMatchObject(part)
})
