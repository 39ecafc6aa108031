// What reaches the provider: the raw model sees each request as it was sent.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { childrenOf, runRoot, spawnOf } from '@offshoot/testing/agents'
import { callsTool, type RawModel, type RawScript, says, startRawModel } from '@offshoot/testing/raw-model'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl)
  await stage.putBot('parent')
  await stage.putBot('child', { systemPrompt: 'You are a child.', childPrompts: { role: 'You were spawned.' } })
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const bodyOf = (message: string) => raw.requests(message).at(-1)?.body ?? {}

const toolNamesOf = (message: string) => {
  const { tools } = bodyOf(message)
  return Array.isArray(tools) ? tools.map(({ name }: { name: string }) => name) : []
}

/** The instructions of a request: the first item of its input. */
const instructionsOf = (message: string) => {
  const { input } = bodyOf(message)
  const first: unknown = Array.isArray(input) ? input[0] : undefined
  return first !== null && typeof first === 'object' && 'content' in first ? first.content : undefined
}

test('a spawned bot runs with its own model, prompts and tools, and nothing is kept by the provider', async () => {
  raw.answer('plain', says('hi'))
  await runRoot(stage, 'child', 'plain')
  expect(bodyOf('plain')).toMatchObject({ model: 'gpt-5', store: false, stream: true })
  expect(bodyOf('plain')['include']).toContain('reasoning.encrypted_content')
  expect(instructionsOf('plain')).toBe('You are a child.\n\nYou were spawned.')
  expect(toolNamesOf('plain')).toEqual(['spawnAgent', 'checkAgent', 'abortAgent'])
})

test('a bot may let the provider keep its responses', async () => {
  await stage.putBot('keeper', { storeResponses: true, verbosity: 'low', serviceTier: 'flex' })
  raw.answer('keep', says('kept'))
  await runRoot(stage, 'keeper', 'keep')
  expect(bodyOf('keep')).toMatchObject({ store: true, text: { verbosity: 'low' }, service_tier: 'flex' })
})

test('every override of a spawn reaches the child’s request', async () => {
  const overrides = {
    modelOverride: 'openai:ft:gpt-4.1:org',
    systemPromptOverride: 'You are somebody else.',
    systemPromptAppend: 'Be brief.',
    temperature: 0.3,
    reasoningEffort: 'low' as const,
    maxSteps: 7,
    toolFilter: ['checkAgent'],
  }
  raw.answer('spawn it', callsTool('spawnAgent', spawnOf('child', 'as told', { overrides })), says('done'))
  raw.answer('as told', says('ok'))
  const parent = await runRoot(stage, 'parent', 'spawn it')
  expect(parent.state).toBe('completed')
  // The model name after the first colon holds colons itself.
  expect(bodyOf('as told')).toMatchObject({ model: 'ft:gpt-4.1:org', temperature: 0.3 })
  expect(instructionsOf('as told')).toBe('You are somebody else.\n\nBe brief.')
  expect(toolNamesOf('as told')).toEqual(['checkAgent'])
  expect(await childrenOf(stage, parent.id)).toMatchObject([{ maxSteps: 7, toolNames: ['checkAgent'], result: 'ok' }])
})

test('reasoningEffort reaches a reasoning model', async () => {
  raw.answer('think', says('thought'))
  await runRoot(stage, 'child', 'think', { overrides: { reasoningEffort: 'high' } })
  expect(bodyOf('think')).toMatchObject({ model: 'gpt-5', reasoning: { effort: 'high' } })
})

test('the bot’s own temperature and effort hold where no override is given', async () => {
  await stage.putBot('warm', { modelName: 'gpt-4.1', temperature: 0.9, systemPrompt: 'You are warm.' })
  raw.answer('warm?', says('yes'))
  await runRoot(stage, 'warm', 'warm?', { overrides: { systemPromptAppend: 'Stay so.' } })
  expect(bodyOf('warm?')).toMatchObject({ model: 'gpt-4.1', temperature: 0.9 })
  expect(instructionsOf('warm?')).toBe('You are warm.\n\nStay so.')
})

/** Calls a tool again and again, until tools are off. */
const callsOnAndOn: RawScript = (reply, { body }) => {
  if (body['tool_choice'] !== 'none') reply.call('checkAgent', { jobId: 'nothing' }, 'call_check')
  else reply.text('That is all I have.')
  reply.finish()
}

test('STATE-6: the last allowed step runs with tools off, and the outcome says step_limit', async () => {
  raw.answer('never stop', callsOnAndOn)
  const job = await runRoot(stage, 'child', 'never stop', { overrides: { maxSteps: 3 } })
  expect(raw.requests('never stop').map(({ body }) => body['tool_choice'])).toEqual(['auto', 'auto', 'none'])
  expect(job).toMatchObject({ state: 'completed', reason: 'step_limit', result: 'That is all I have.', steps: 3 })
})

test('STATE-6: a model that calls a tool in the last step all the same ends at the step limit', async () => {
  raw.answer('cannot stop', callsTool('checkAgent', { jobId: 'nothing' }))
  const job = await runRoot(stage, 'child', 'cannot stop', { overrides: { maxSteps: 2 } })
  expect(job).toMatchObject({ state: 'failed', reason: 'step_limit' })
  expect(raw.requests('cannot stop')).toHaveLength(2)
})

test('one step that is a plain answer is no step limit', async () => {
  raw.answer('once', says('here'))
  expect(await runRoot(stage, 'child', 'once', { overrides: { maxSteps: 1 } })).toMatchObject({
    state: 'completed',
    reason: 'completed',
    result: 'here',
  })
})

test('STATE-11: a check in the step after an async spawn knows the job', async () => {
  raw.answer(
    'spawn and check',
    callsTool('spawnAgent', spawnOf('child', 'in the back', { mode: 'async' })),
    (reply, { body }) => {
      reply.call('checkAgent', { jobId: lastOutputOf(body)['jobId'], waitSeconds: 5 }, 'call_check')
      reply.finish()
    },
    (reply, { body }) => {
      reply.text(`it is ${String(lastOutputOf(body)['state'])}: ${String(lastOutputOf(body)['result'])}`)
      reply.finish()
    },
  )
  raw.answer('in the back', says('done there'))
  expect(await runRoot(stage, 'parent', 'spawn and check')).toMatchObject({
    state: 'completed',
    result: 'it is completed: done there',
  })
})

test('SEC-4: a job reaches its own subtree and no other job, whatever id its model writes', async () => {
  raw.answer('mine', says('secret'))
  const other = await runRoot(stage, 'child', 'mine')
  const outputs: unknown[] = []
  raw.answer(
    'look at others',
    (reply) => {
      reply.call('checkAgent', { jobId: other.id }, 'call_check')
      reply.call('abortAgent', { jobId: other.id }, 'call_abort')
      reply.finish()
    },
    (reply, { body }) => {
      outputs.push(...outputsOf(body))
      reply.text('nothing')
      reply.finish()
    },
  )
  await runRoot(stage, 'parent', 'look at others')
  expect(outputs).toEqual([
    { state: 'failed', progress: null, result: null, error: `Job ${other.id} not found.` },
    { jobId: other.id, state: 'failed', error: `Job ${other.id} not found.`, abortedDescendants: 0 },
  ])
})

function outputsOf({ input }: Record<string, unknown>): Record<string, unknown>[] {
  const items: { type?: string; output?: string }[] = Array.isArray(input) ? input : []
  return items.filter((item) => item.type === 'function_call_output').map(({ output }) => JSON.parse(output ?? '{}'))
}

function lastOutputOf(body: Record<string, unknown>): Record<string, unknown> {
  return outputsOf(body).at(-1) ?? {}
}
