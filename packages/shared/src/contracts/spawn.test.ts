import { expect, test } from 'vitest'
import { botRefSchema, botWriteSchema } from './bot.ts'
import { asyncNote, programSpawnInputSchema, spawnInputSchema } from './spawn.ts'

const BOT = { botGroup: 'forge', botHandle: 'writer' }
const accepts = (input: object) => spawnInputSchema.safeParse({ bot: BOT, message: 'go', ...input }).success

test('mode is sync by default; everything else may be left out', () => {
  expect(spawnInputSchema.parse({ bot: BOT, message: 'go' })).toEqual({ bot: BOT, message: 'go', mode: 'sync' })
})

test('a bot is named by id or by group and handle, in exactly one of the two forms', () => {
  expect(botRefSchema.safeParse({ botId: 'b1' }).success).toBe(true)
  expect(botRefSchema.safeParse(BOT).success).toBe(true)
  expect(botRefSchema.safeParse({ botId: '' }).success).toBe(false)
  for (const ref of [{}, { botGroup: 'forge' }, { botHandle: 'writer' }, { botId: 'b1', ...BOT }, 'forge/writer'])
    expect(botRefSchema.safeParse(ref).error?.issues[0]?.message).toMatch(
      /^must be \{ botId \} or \{ botGroup, botHandle \}/,
    )
})

test('the limits of the contract hold at both ends', () => {
  const limits: [object, boolean][] = [
    [{ timeoutSeconds: 1 }, true],
    [{ timeoutSeconds: 0.5 }, false],
    [{ timeoutSeconds: 86_400 }, true],
    [{ timeoutSeconds: 86_401 }, false],
    [{ overrides: { temperature: 0 } }, true],
    [{ overrides: { temperature: 2 } }, true],
    [{ overrides: { temperature: 2.1 } }, false],
    [{ overrides: { temperature: -0.1 } }, false],
    [{ overrides: { maxSteps: 1 } }, true],
    [{ overrides: { maxSteps: 100 } }, true],
    [{ overrides: { maxSteps: 0 } }, false],
    [{ overrides: { maxSteps: 101 } }, false],
    [{ overrides: { maxSteps: 1.5 } }, false],
    [{ overrides: { reasoningEffort: 'minimal' } }, true],
    [{ overrides: { reasoningEffort: 'extreme' } }, false],
    [{ mode: 'later' }, false],
  ]
  for (const [input, accepted] of limits) expect([input, accepts(input)]).toEqual([input, accepted])
})

test('SEC-2: unknown fields are refused, on top and inside', () => {
  for (const input of [{ id: 'mine' }, { overrides: { tools: [] } }, { completionEvent: { name: 'x', id: 'y' } }])
    expect(accepts(input)).toBe(false)
})

test('a model may not say what only a program may', () => {
  const only = { tags: { a: 'b' }, priority: 1, lane: 'gpu', layers: ['l'], steers: 'forward', onParentEnd: 'continue' }
  for (const [name, value] of Object.entries(only)) {
    expect(accepts({ [name]: value })).toBe(false)
    expect(programSpawnInputSchema.safeParse({ bot: BOT, message: 'go', [name]: value }).success).toBe(true)
  }
})

test('SEC-2: a program cannot give a job its id either', () => {
  for (const name of ['id', 'jobId', 'convoId', 'idempotencyKey'])
    expect(programSpawnInputSchema.safeParse({ bot: BOT, message: 'go', [name]: 'x' }).success).toBe(false)
})

test('an async answer says how the result will come, and not to poll', () => {
  expect(asyncNote({ notifyParent: false })).toMatch(/checkAgent.*do not poll/)
  expect(asyncNote({ notifyParent: true })).toMatch(
    /comes to you as a message.*you are called again when it is there. Do not poll/,
  )
})

test('SEC-9: names that every object has are no bot handles of special meaning', () => {
  expect(botRefSchema.parse({ botGroup: 'forge', botHandle: '__proto__' })).toEqual({
    botGroup: 'forge',
    botHandle: '__proto__',
  })
  expect(
    botWriteSchema.safeParse({ name: 'x', integration: 'openai', modelName: 'm', lane: '__proto__' }).success,
  ).toBe(false)
})
