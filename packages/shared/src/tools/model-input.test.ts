import { asSchema } from 'ai'
import { expect, test } from 'vitest'
import { checkInputSchema } from '../contracts/check.ts'
import { spawnInputSchema } from '../contracts/spawn.ts'
import { modelInput } from './model-input.ts'

const spawnInput = modelInput(spawnInputSchema, ['message', 'bot'])
const BOT = { botGroup: 'forge', botHandle: 'writer' }

async function read(value: unknown) {
  const result = await asSchema(spawnInput).validate?.(value)
  return result?.success === true ? result.value : result?.error.message
}

test('empty optional fields from a model count as absent', async () => {
  const written = {
    bot: BOT,
    message: 'go',
    runAsUserId: '',
    completionEvent: {},
    overrides: { modelOverride: '', systemPromptAppend: '', toolFilter: [] },
  }
  expect(await read(written)).toEqual({ bot: BOT, message: 'go', mode: 'sync' })
})

test('a model that fills both forms of a bot, one of them empty, means the other one', async () => {
  expect(await read({ bot: { botId: '', ...BOT }, message: 'go' })).toMatchObject({ bot: BOT })
})

test('an empty message is kept, so that it can be refused by its own sentence', async () => {
  expect(await read({ bot: BOT, message: '' })).toMatchObject({ message: '' })
})

test('input that is nested too deep is refused, however deep', async () => {
  let nested: unknown = 'bottom'
  for (let depth = 0; depth < 100_000; depth += 1) nested = [nested]
  const written = { bot: BOT, message: 'go', completionEvent: { name: 'x', data: { nested } } }
  expect(await read(written)).toBe('Lists and objects may be nested 100 deep.')
})

test('what is wrong is said legibly, with the field that is wrong', async () => {
  expect(await read({ bot: BOT })).toMatch(/expected string.*\n.*message/)
  expect(await read({ bot: BOT, message: 'go', overrides: { maxSteps: 1_000 } })).toMatch(/overrides\.maxSteps/)
  expect(await read({ bot: BOT, message: 'go', jobId: 'mine' })).toMatch(/jobId/)
  expect(await read('go')).toMatch(/expected object/)
})

test('the model sees a JSON Schema with descriptions and without propertyNames', async () => {
  const json = await asSchema(spawnInput).jsonSchema
  expect(JSON.stringify(json)).not.toContain('propertyNames')
  expect(json).toMatchObject({
    type: 'object',
    required: ['bot', 'message'],
    additionalProperties: false,
    properties: {
      message: { type: 'string', description: expect.stringContaining('100000 characters') },
      mode: { enum: ['sync', 'async'], default: 'sync' },
      completionEvent: { type: 'object', required: ['name'] },
    },
  })
})

test('fields with a default are not required of the model', async () => {
  const json = await asSchema(modelInput(checkInputSchema, ['jobId'])).jsonSchema
  expect(json).toMatchObject({ required: ['jobId'], properties: { waitSeconds: { default: 0, maximum: 60 } } })
})
