// SEC-9: names that a model chooses and that every JavaScript object has are unknown names like any other.
import { childrenOf, endOf, runRoot, spawnOf, spawnRoot } from '@offshoot/testing/agents'
import { type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

const NAMES = ['constructor', '__proto__', 'toString', 'hasOwnProperty', 'valueOf']

let raw: RawModel
let stage: WorkerStage
beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl)
  await stage.putBot('bot')
})
afterAll(async () => {
  await stage.close()
  await raw.stop()
})

/** What the model reads as the result of each of its calls. */
function resultsOf(message: string): Record<string, string> {
  const input = raw.requests(message)[1]?.body['input']
  const items = (Array.isArray(input) ? input : []) as { type?: string; call_id?: string; output?: unknown }[]
  return Object.fromEntries(
    items
      .filter(({ type }) => type === 'function_call_output')
      .map(({ call_id: id = '', output }) => [id, typeof output === 'string' ? output : JSON.stringify(output)]),
  )
}

/** Runs a job whose model makes these calls in one step, and goes on. */
async function callAll(message: string, calls: [name: string, input: unknown][]) {
  raw.answer(
    message,
    (reply) => {
      for (const [at, [name, input]] of calls.entries()) reply.call(name, input, `call_${at}`)
      reply.finish()
    },
    says('I see.'),
  )
  const job = await runRoot(stage, 'bot', message)
  expect(job).toMatchObject({ state: 'completed', result: 'I see.', steps: 2, attempt: 1 })
  const byId = resultsOf(message)
  expect(Object.keys(byId)).toHaveLength(calls.length)
  return { job, results: calls.map((_, at) => byId[`call_${at}`] ?? '') }
}

test('SEC-9: calls of tools with such names get the answer of an unknown tool; the job goes on', async () => {
  const { results } = await callAll(
    'call odd tools',
    [...NAMES, 'nothing'].map((name) => [name, {}]),
  )
  const unknown = results.at(-1) ?? ''
  expect(unknown).toContain('nothing')
  for (const [at, name] of NAMES.entries()) expect(results[at]).toBe(unknown.replaceAll('nothing', name))
})

test('SEC-9: so do spawns of bots, models, tools and jobs with such names', async () => {
  for (const name of NAMES) {
    const { job, results } = await callAll(`spawn ${name}`, [
      ['spawnAgent', { bot: { botGroup: 'forge', botHandle: name }, message: 'x' }],
      ['spawnAgent', { bot: { botId: name }, message: 'x' }],
      ['spawnAgent', spawnOf('bot', 'x', { overrides: { modelOverride: `${name}:x` } })],
      ['spawnAgent', spawnOf('bot', 'x', { overrides: { toolFilter: [name] } })],
      ['spawnAgent', spawnOf('bot', 'x', { runAsUserId: name })],
      ['checkAgent', { jobId: name }],
      ['abortAgent', { jobId: name }],
    ])
    const [byHandle, byId, model, tool, user, check, abort] = results
    // A handle is a word in small letters; what is none is refused as such.
    expect(byHandle).toMatch(/Bot not found: forge\/|Invalid input for spawnAgent/)
    expect(byId).toContain(`Bot not found: ${name}.`)
    expect(model).toContain(`Unknown model provider: ${name}. Known: openai.`)
    expect(tool).toContain(`Unknown tools: ${name}. Known: spawnAgent, checkAgent, abortAgent.`)
    expect(user).toContain(`Not authorized to spawn sub-agent as user ${name}.`)
    expect(check).toContain(`Job ${name} not found.`)
    expect(abort).toContain(`Job ${name} not found.`)
    expect(await childrenOf(stage, job.id)).toEqual([])
  }
  expect(raw.requests('x')).toEqual([])
})

test('SEC-9: an input with such fields is an input like any other', async () => {
  const { results } = await callAll('odd fields', [
    ['checkAgent', JSON.parse('{"jobId":"none","__proto__":{"includePartial":true}}')],
    ['checkAgent', JSON.parse('{"constructor":{"prototype":{"jobId":"mine"}}}')],
  ])
  expect(results.join()).not.toContain('"state":"completed"')
  expect(Object.keys(Object.prototype)).toEqual([])
  expect(({} as Record<string, unknown>)['jobId']).toBeUndefined()
})

test('SEC-9: tags with such keys are kept; __proto__ is left out', async () => {
  const tags: Record<string, string> = JSON.parse('{"__proto__":"a","constructor":"b","toString":"c"}')
  raw.answer('tagged', says('done'))
  const { id } = await spawnRoot(stage, 'bot', 'tagged', { tags })
  const job = await endOf(stage, id)
  expect(JSON.stringify(job.tags)).toBe('{"toString":"c","constructor":"b"}')
})
