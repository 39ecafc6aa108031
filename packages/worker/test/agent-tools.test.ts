// listAgents and messageAgent in the hands of a running job: it reaches exactly its own subtree.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { requestAbort } from '@offshoot/shared/operations/abort-agent'
import { listSubAgents } from '@offshoot/shared/operations/list-agents'
import { abort, childrenOf, endOf, readJob, runRoot, spawnOf, spawnRoot, untilLiveText } from '@offshoot/testing/agents'
import { callsTool, type RawModel, says, startRawModel, ticking } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage
beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl)
  await stage.putBot('lead', { toolNames: ['spawnAgent', 'checkAgent', 'listAgents', 'messageAgent'] })
  await stage.putBot('child', { toolNames: ['checkAgent'] })
})
afterAll(async () => {
  await stage.close()
  await raw.stop()
})

/** What the model read of its calls, in the last request with that message. */
function outputsOf(message: string): unknown[] {
  const { input } = raw.requests(message).at(-1)?.body ?? {}
  const items: { type?: string; output?: string }[] = Array.isArray(input) ? input : []
  return items.flatMap(({ type, output }) =>
    type === 'function_call_output' && output !== undefined ? [JSON.parse(output)] : [],
  )
}

test('SEC-1: a job lists and messages its own sub-agents, and nobody else’s', async () => {
  raw.answer('somebody else', ticking)
  const foreign = await spawnRoot(stage, 'child', 'somebody else')
  const messaged = Promise.withResolvers<void>()
  raw.answer('work', async (reply) => {
    reply.text('Looking.')
    await messaged.promise
    reply.call('checkAgent', { jobId: 'nothing' }, 'call_0')
    reply.finish()
  })
  raw.answer('hurry up', says('hurried'))
  let leadId = ''
  const childId = async () => (await childrenOf(stage, leadId))[0]?.id ?? ''
  raw.answer(
    'lead them',
    callsTool('spawnAgent', spawnOf('child', 'work', { mode: 'async' }), 'call_0'),
    async (reply) => {
      await untilLiveText(stage, await childId(), 'Looking.')
      reply.call('listAgents', {}, 'call_1')
      reply.call('messageAgent', { jobId: await childId(), message: 'hurry up' }, 'call_2')
      reply.call('messageAgent', { jobId: foreign.id, message: 'hurry up' }, 'call_3')
      reply.call('messageAgent', { jobId: leadId, message: 'hurry up' }, 'call_4')
      reply.finish()
    },
    (reply) => {
      messaged.resolve()
      reply.text('led')
      reply.finish()
    },
  )
  leadId = (await spawnRoot(stage, 'lead', 'lead them')).id
  expect(await endOf(stage, leadId)).toMatchObject({ state: 'completed', result: 'led' })
  const id = await childId()
  const [, list, ...receipts] = outputsOf('lead them')
  const child = { jobId: id, bot: 'forge/child', state: 'running', step: 0, lastText: 'Looking.' }
  expect(list).toEqual({ agents: [{ ...child, ageSeconds: expect.any(Number) }] })
  expect(receipts).toEqual([
    { accepted: true },
    { accepted: false, reason: `Job ${foreign.id} not found.` },
    { accepted: false, reason: `Job ${leadId} not found.` },
  ])
  expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'hurried' })
  await abort(stage, foreign.id)
})

test('a bot that does not name them does not have them', async () => {
  raw.answer('alone', callsTool('listAgents', {}), says('done'))
  await runRoot(stage, 'child', 'alone')
  const { tools } = raw.requests('alone')[0]?.body ?? {}
  expect(Array.isArray(tools) && tools.map(({ name }: { name: string }) => name)).toEqual(['checkAgent'])
  await waitUntil(() => raw.requests('alone').length === 2)
})

test('of a job that waits, the list has what its last step said', async () => {
  raw.answer('never done', ticking)
  raw.answer('wait for it', (reply) => {
    reply.text('I ask.')
    reply.call('spawnAgent', spawnOf('child', 'never done'), 'call_0')
    reply.finish()
  })
  const { id } = await spawnRoot(stage, 'lead', 'wait for it', { userId: 'carol' })
  await waitUntil(async () => (await readJob(stage, id)).waitingOn === 'children')
  const [child] = await childrenOf(stage, id)
  await untilLiveText(stage, child?.id ?? '', 'tick')
  const { agents } = await listSubAgents(stage.runtime, { userId: 'carol', admin: false }, { live: true, limit: 20 })
  expect(agents).toMatchObject([
    { jobId: child?.id, lastText: expect.stringMatching(/tick/) },
    { jobId: id, state: 'running', step: 1, lastText: 'I ask.' },
  ])
  await requestAbort(stage.runtime, await readJob(stage, id), { by: 'carol', reason: 'aborted_by_user', text: null })
})
