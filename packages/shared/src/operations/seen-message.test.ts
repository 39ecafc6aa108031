import { readUIMessageStream, type UIMessage, type UIMessageChunk } from 'ai'
import { expect, test } from 'vitest'
import { createSeenMessage } from './seen-message.ts'

type Parts = UIMessage['parts']

const PARTS: Parts = [
  { type: 'step-start' },
  { type: 'reasoning', text: 'let me see', state: 'done' },
  { type: 'text', text: 'I look it up.', state: 'done' },
  { type: 'tool-search', toolCallId: 'a', state: 'output-available', input: { for: 'it' }, output: { found: 1 } },
  { type: 'tool-search', toolCallId: 'b', state: 'output-error', input: {}, errorText: 'no such page' },
  { type: 'step-start' },
  { type: 'file', mediaType: 'image/png', url: 'data:image/png;base64,AA==' },
  { type: 'text', text: 'Here it is.', state: 'done' },
]

/** The live frames of the same message, text in small pieces. */
const LIVE: UIMessageChunk[] = [
  { type: 'start', messageId: 'm' },
  { type: 'start-step' },
  { type: 'reasoning-start', id: 'r1' },
  ...['let ', 'me ', 'see'].map((delta) => ({ type: 'reasoning-delta' as const, id: 'r1', delta })),
  { type: 'reasoning-end', id: 'r1' },
  { type: 'text-start', id: 't0' },
  { type: 'text-end', id: 't0' },
  { type: 'text-start', id: 't1' },
  ...['I look ', 'it ', 'up.'].map((delta) => ({ type: 'text-delta' as const, id: 't1', delta })),
  { type: 'text-end', id: 't1' },
  { type: 'tool-input-start', toolCallId: 'a', toolName: 'search' },
  { type: 'tool-input-available', toolCallId: 'a', toolName: 'search', input: { for: 'it' } },
  { type: 'tool-input-available', toolCallId: 'b', toolName: 'search', input: {} },
  { type: 'tool-output-available', toolCallId: 'a', output: 'soon', preliminary: true },
  { type: 'tool-output-available', toolCallId: 'a', output: { found: 1 } },
  { type: 'tool-output-error', toolCallId: 'b', errorText: 'no such page' },
  { type: 'finish-step' },
  { type: 'start-step' },
  { type: 'file', mediaType: 'image/png', url: 'data:image/png;base64,AA==' },
  { type: 'text-start', id: 't1' },
  ...['Here ', 'it ', 'is.'].map((delta) => ({ type: 'text-delta' as const, id: 't1', delta })),
  { type: 'text-end', id: 't1' },
  { type: 'finish-step' },
]

const fail = (error: unknown) => expect.unreachable(String(error))

async function messageOf(chunks: UIMessageChunk[]): Promise<UIMessage | undefined> {
  let message: UIMessage | undefined
  for await (message of readUIMessageStream({ stream: ReadableStream.from(chunks), onError: fail }));
  return message
}

/** Parts without what only live frames bring: an empty text. */
const shown = (message: UIMessage | undefined) =>
  message?.parts.filter((part) => part.type !== 'text' || part.text !== '')

test('a viewer that has seen nothing gets the whole', async () => {
  const chunks: UIMessageChunk[] = [{ type: 'start', messageId: 'm' }, ...createSeenMessage().missing(PARTS)]
  const message = await messageOf([...chunks, { type: 'finish' }])
  expect(message?.id).toBe('m')
  expect(message?.parts).toHaveLength(PARTS.length)
  expect(message?.parts).toMatchObject(PARTS)
})

test('LOSS-20: wherever a viewer’s frames end, it gets the rest: every part whole and once', async () => {
  for (let length = 1; length <= LIVE.length; length += 1) {
    const seen = createSeenMessage()
    const frames = LIVE.slice(0, length)
    for (const chunk of frames) seen.note(chunk)
    const message = await messageOf([...frames, ...seen.missing(PARTS), { type: 'finish' }])
    expect(shown(message), `after ${length} frames`).toMatchObject(PARTS)
    expect(shown(message)).toHaveLength(PARTS.length)
    expect(seen.missing(PARTS)).toEqual([])
  }
})

test('live frames go on after what was missing', async () => {
  const second = LIVE.findLastIndex(({ type }) => type === 'start-step')
  for (let length = 1; length < second; length += 1) {
    const seen = createSeenMessage()
    const frames = LIVE.slice(0, length)
    for (const chunk of frames) seen.note(chunk)
    const missing = seen.missing(PARTS.slice(0, 5))
    const message = await messageOf([...frames, ...missing, ...LIVE.slice(second)])
    expect(shown(message), `after ${length} frames`).toMatchObject(PARTS)
  }
})

test('a step that is made again takes the place of what was seen of it', () => {
  const seen = createSeenMessage()
  const second = LIVE.findLastIndex(({ type }) => type === 'start-step')
  for (const chunk of LIVE.slice(0, second + 4)) seen.note(chunk)
  for (const chunk of LIVE.slice(second)) seen.note(chunk, chunk.type === 'start-step' ? 1 : undefined)
  expect(seen.missing(PARTS)).toEqual([])
})

test('a call whose outcome came after its step had ended, and was missed, gets it', () => {
  const seen = createSeenMessage()
  const without = LIVE.filter((chunk) => chunk.type !== 'tool-output-error')
  for (const chunk of without) seen.note(chunk)
  expect(seen.missing(PARTS)).toEqual([{ type: 'tool-output-error', toolCallId: 'b', errorText: 'no such page' }])
})
