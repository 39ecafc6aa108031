// Two worker processes, and what happens to their jobs when one of them is killed.
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { requestAbort } from '@offshoot/shared/operations/abort-agent'
import { MAX_CRASHES } from '@offshoot/shared/operations/hand-back'
import {
  answerOf,
  childrenOf,
  endOf,
  eventsOf,
  openConvo,
  readJob,
  runRoot,
  say,
  spawnOf,
  spawnRoot,
  startTurnOf,
  untilLiveText,
} from '@offshoot/testing/agents'
import { callsTool, type RawModel, type RawScript, says, staysSilent } from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { openSystemStage, type SystemStage } from './system-stage.ts'

let stage: SystemStage
let raw: RawModel

beforeAll(async () => {
  stage = await openSystemStage()
  raw = stage.raw
})

beforeEach(() => stage.fleet.replenish())

afterAll(() => stage.close())

/** What the model reads of its calls, in the last request with that message. */
function outputsOf(message: string): unknown[] {
  const { input } = raw.requests(message).at(-1)?.body ?? {}
  const items: { type?: string; output?: string }[] = Array.isArray(input) ? input : []
  return items.filter((item) => item.type === 'function_call_output').map(({ output }) => output)
}

/** Kills the worker that runs a job, and answers when. */
async function killWorkerOf(jobId: string): Promise<number> {
  const worker = await stage.fleet.workerOf(jobId)
  worker.kill('SIGKILL')
  await worker.exited
  return performance.now()
}

test('a config module’s tools and providers are there in a worker process', async () => {
  await stage.putBot('polly', { integration: 'parrot', modelName: 'grey', toolNames: [] })
  raw.answer(
    'use yours',
    (reply) => {
      reply.call('note', { text: 'configured' }, 'call_note')
      reply.call('spawnAgent', spawnOf('polly', 'hello'), 'call_spawn')
      reply.finish()
    },
    says('used'),
  )
  const job = await runRoot(stage, 'bot', 'use yours')
  expect(job).toMatchObject({ state: 'completed', result: 'used' })
  expect(await stage.notesOf('configured')).toEqual(['note configured'])
  expect(await childrenOf(stage, job.id)).toMatchObject([{ state: 'completed', result: 'I am grey for alice' }])
})

describe('SIGKILL', () => {
  test('COST-3: between two steps: another worker finishes the job, and no finished call is repeated', async () => {
    raw.answer('two steps', callsTool('note', { text: 'between' }), staysSilent, says('finished elsewhere'))
    const { id } = await spawnRoot(stage, 'bot', 'two steps')
    await waitUntil(() => raw.requests('two steps').length === 2)
    // The worst case: the worker that is killed is the one whose reconciler is active.
    const { workerId } = await readJob(stage, id)
    await stage.runtime.database.lease.updateMany({ data: { holder: workerId ?? '' } })
    const killedAt = await killWorkerOf(id)
    await waitUntil(() => raw.requests('two steps').length === 3)
    expect(performance.now() - killedAt).toBeLessThan(3_000)
    expect(await endOf(stage, id)).toMatchObject({
      state: 'completed',
      result: 'finished elsewhere',
      attempt: 2,
      crashes: 0,
      steps: 2,
      inputTokens: 20n,
    })
    expect(await stage.notesOf('between')).toEqual(['note between'])
    // One call for step 0, the one that was cut, and one again for step 1.
    expect(raw.requests('two steps')).toHaveLength(3)
    expect(outputsOf('two steps')).toEqual(['noted between'])
    expect(await eventsOf(stage, id)).toEqual(['spawned', 'worker-lost', 'ended'])
  })

  test('while its next model call has not answered: viewers keep the step before it, which nobody shows again', async () => {
    raw.answer(
      'look and wait',
      (reply) => {
        reply.text('I look.')
        reply.call('note', { text: 'looked' }, 'call_0')
        reply.finish()
      },
      staysSilent,
      says('seen'),
    )
    const { id } = await spawnRoot(stage, 'bot', 'look and wait')
    await waitUntil(() => raw.requests('look and wait').length === 2)
    await killWorkerOf(id)
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'seen', attempt: 2, steps: 2 })
    await waitUntil(async () => (await stage.runtime.liveStreams.readTail(id)).at(-1)?.end === true)
    const frames = (await stage.runtime.liveStreams.read(id, 0)).flatMap(({ chunks }) => chunks)
    expect(frames.map(({ type }) => type).filter((type) => !type.endsWith('-delta'))).toEqual([
      'start',
      'start-step',
      'text-start',
      'text-end',
      'tool-input-start',
      'tool-input-available',
      'tool-output-available',
      'finish-step',
      'data-attempt',
      'start-step',
      'text-start',
      'text-end',
      'finish-step',
      'finish',
    ])
  })

  test('COST-3: in a tool call: no model call is made again, a finished call answers from its row, a cut one is unknown', async () => {
    raw.answer(
      'note and be slow',
      (reply) => {
        reply.text('I do both.')
        reply.call('note', { text: 'quickly' }, 'call_0')
        reply.call('slow', { text: 'slowly' }, 'call_1')
        reply.finish()
      },
      says('both looked at'),
    )
    const { id } = await spawnRoot(stage, 'bot', 'note and be slow')
    await stage.untilNote('slow begins slowly')
    await waitUntil(() =>
      stage.runtime.database.agentToolCall.findFirst({ where: { jobId: id, finishedAt: { not: null } } }),
    )
    await killWorkerOf(id)
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'both looked at', attempt: 2 })
    expect(await stage.notesOf('quickly')).toEqual(['note quickly'])
    expect(await stage.notesOf('slowly')).toEqual(['slow begins slowly'])
    expect(raw.requests('note and be slow')).toHaveLength(2)
    expect(outputsOf('note and be slow')).toEqual([
      'noted quickly',
      expect.stringContaining('The outcome of this call of slow is unknown: the process that ran it was lost.'),
    ])
    expect(await answerOf(stage, id)).toMatchObject([
      { type: 'step-start' },
      { type: 'text', text: 'I do both.' },
      { type: 'tool-note', state: 'output-available', output: 'noted quickly' },
      { type: 'tool-slow', state: 'output-error' },
      { type: 'step-start' },
      { type: 'text', text: 'both looked at' },
    ])
    // Viewers have seen nothing twice.
    const frames = (await stage.runtime.liveStreams.read(id, 0)).flatMap(({ chunks }) => chunks)
    const texts = frames.flatMap((chunk) => (chunk.type === 'text-delta' ? [chunk.delta] : []))
    expect(texts.join('')).toBe('I do both.both looked at')
    expect(frames.filter(({ type }) => type === 'tool-input-available')).toHaveLength(2)
    // They keep what they have seen of the first step: all of the next one is new.
    expect(frames).toContainEqual({
      type: 'data-attempt',
      transient: true,
      data: { generation: 1, attempt: 2, fromStep: 1 },
    })
  })

  test('COST-3: of a worker whose step had read a steer: the repeated step reads it again, once', async () => {
    const steered = Promise.withResolvers<void>()
    raw.answer('steer me', async (reply) => {
      reply.text('Listening.')
      await steered.promise
      reply.call('note', { text: 'steered' }, 'call_0')
      reply.finish()
    })
    raw.answer('turn left', staysSilent, says('turned'))
    const convoId = await openConvo(stage, 'bot')
    const id = await startTurnOf(stage, convoId, 'steer me')
    await untilLiveText(stage, id, 'Listening.')
    await say(stage, convoId, 'turn left')
    steered.resolve()
    await waitUntil(() => raw.requests('turn left').length === 1)
    await killWorkerOf(id)
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'turned', attempt: 2 })
    const prompts = raw.requests('turn left').map(({ body }) => JSON.stringify(body['input']))
    expect(prompts).toHaveLength(2)
    expect(prompts[1]).toBe(prompts[0])
    expect(prompts[1]?.split('turn left')).toHaveLength(2)
  })

  test('COST-3: a call of a tool that declares itself idempotent runs again', async () => {
    raw.answer('be slow again', callsTool('slowRetry', { text: 'twice' }), says('retried'))
    const { id } = await spawnRoot(stage, 'bot', 'be slow again')
    await stage.untilNote('slowRetry begins twice')
    await killWorkerOf(id)
    await waitUntil(async () => (await stage.notesOf('twice')).length === 2)
    await stage.release('twice')
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'retried', attempt: 2 })
    expect(await stage.notesOf('twice')).toEqual([
      'slowRetry begins twice',
      'slowRetry begins twice',
      'slowRetry ends twice',
    ])
    expect(raw.requests('be slow again')).toHaveLength(2)
  })

  test('COST-3: a call that runs again has the idempotency key of its first run, and no other call has it', async () => {
    raw.answer(
      'order twice',
      (reply) => {
        reply.call('order', { text: 'tea' }, 'call_0')
        reply.call('order', { text: 'milk' }, 'call_1')
        reply.finish()
      },
      callsTool('order', { text: 'cake' }, 'call_0'),
      says('ordered'),
    )
    const { id } = await spawnRoot(stage, 'bot', 'order twice')
    const notes = async () => [...(await stage.notesOf('tea')), ...(await stage.notesOf('milk'))]
    await waitUntil(async () => (await notes()).length === 2)
    await killWorkerOf(id)
    await waitUntil(async () => (await notes()).length === 4)
    for (const text of ['tea', 'milk', 'cake']) await stage.release(text)
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'ordered', attempt: 2 })
    const [tea, milk, cake] = await Promise.all(['tea', 'milk', 'cake'].map((text) => stage.notesOf(text)))
    expect(tea).toEqual([tea?.[0], tea?.[0]])
    expect(milk).toEqual([milk?.[0], milk?.[0]])
    expect(cake).toHaveLength(1)
    const keys = [tea, milk, cake].map((lines) => lines?.[0]?.split(' ')[1])
    expect(new Set(keys).size).toBe(3)
  })

  test('COST-3: a cut call of a tool that must not be in doubt fails the job as worker_lost, and the sentence names the tool', async () => {
    raw.answer('be slow and sure', callsTool('slowFail', { text: 'sure' }), says('never'))
    const { id } = await spawnRoot(stage, 'bot', 'be slow and sure')
    await stage.untilNote('slowFail begins sure')
    await killWorkerOf(id)
    const job = await endOf(stage, id)
    expect(job).toMatchObject({
      state: 'failed',
      reason: 'worker_lost',
      attempt: 2,
      error:
        'The process that ran the job was lost. The outcome of its call of slowFail is unknown, and that tool lets no job go on then.',
    })
    expect(await stage.notesOf('sure')).toEqual(['slowFail begins sure'])
    expect(raw.requests('be slow and sure')).toHaveLength(1)
  })

  test('LOSS-6: of the worker of a child reaches its waiting parent as the child’s true end', async () => {
    raw.answer('ask a child', callsTool('spawnAgent', spawnOf('bot', 'answer slowly')), says('the child is back'))
    raw.answer('answer slowly', staysSilent, says('here I am'))
    const { id } = await spawnRoot(stage, 'bot', 'ask a child')
    await waitUntil(() => raw.requests('answer slowly').length === 1)
    expect(await readJob(stage, id)).toMatchObject({ waitingOn: 'children', workerId: null })
    const [child] = await childrenOf(stage, id)
    await killWorkerOf(child?.id ?? '')
    expect(await endOf(stage, id)).toMatchObject({
      state: 'completed',
      result: 'the child is back',
      attempt: 2,
      crashes: 0,
    })
    expect(await readJob(stage, child?.id ?? '')).toMatchObject({ state: 'completed', attempt: 2 })
    expect(await eventsOf(stage, child?.id ?? '')).toEqual(['spawned', 'worker-lost', 'ended'])
    expect(raw.requests('ask a child')).toHaveLength(2)
  })

  test('LOSS-6: of the worker of a child, once too often, reaches its waiting parent as the child’s failure', async () => {
    raw.answer('ask a poisonous child', callsTool('spawnAgent', spawnOf('bot', 'die of me')), says('it is quarantined'))
    raw.answer('die of me', staysSilent)
    const { id } = await spawnRoot(stage, 'bot', 'ask a poisonous child')
    await waitUntil(() => raw.requests('die of me').length === 1)
    const [child] = await childrenOf(stage, id)
    const childId = child?.id ?? ''
    await stage.runtime.database.agentJob.update({ where: { id: childId }, data: { crashes: MAX_CRASHES - 1 } })
    await killWorkerOf(childId)
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'it is quarantined', attempt: 2 })
    expect(outputsOf('ask a poisonous child').map((output): unknown => JSON.parse(String(output)))).toMatchObject([
      { error: { jobId: childId, state: 'failed', reason: 'worker_crash', result: null } },
    ])
    expect(await eventsOf(stage, id)).toEqual(['spawned', 'waiting', 'woken', 'ended'])
    expect(raw.requests('die of me')).toHaveLength(1)
  })

  test('LOSS-3: of a worker that had not obeyed an abort yet ends the job as aborted, with what it had said', async () => {
    raw.answer(
      'freeze',
      (reply) => {
        reply.text('So far.')
        reply.call('note', { text: 'frozen' }, 'call_0')
        reply.finish()
      },
      staysSilent,
    )
    const { id, rootJobId } = await spawnRoot(stage, 'bot', 'freeze')
    await waitUntil(() => raw.requests('freeze').length === 2)
    const worker = await stage.fleet.workerOf(id)
    worker.kill('SIGSTOP')
    await requestAbort(stage.runtime, { id, rootJobId }, { by: 'alice', reason: 'aborted_by_user', text: 'enough' })
    worker.kill('SIGKILL')
    await worker.exited
    expect(await endOf(stage, id)).toMatchObject({
      state: 'aborted',
      reason: 'aborted_by_user',
      error: 'enough',
      result: 'So far.',
      partial: true,
    })
  })
})

describe('SIGSTOP for longer than the lock, then SIGCONT', () => {
  test('STATE-7: what the frozen worker does then changes nothing, its model connection closes, and it works on', async () => {
    const zombie = Promise.withResolvers<void>()
    const closed = Promise.withResolvers<void>()
    const zombieScript: RawScript = async (reply) => {
      reply.text('I am the ')
      void reply.closed.then(closed.resolve)
      await zombie.promise
      reply.text('zombie')
      reply.finish()
    }
    raw.answer('be frozen', callsTool('note', { text: 'iced' }), zombieScript, says('I am the survivor'))
    const { id } = await spawnRoot(stage, 'bot', 'be frozen')
    await untilLiveText(stage, id, 'I am the')
    const worker = await stage.fleet.workerOf(id)
    worker.kill('SIGSTOP')
    const ended = await endOf(stage, id, 20_000)
    expect(ended).toMatchObject({ state: 'completed', result: 'I am the survivor', attempt: 2, steps: 2 })
    // The end frame follows the row.
    await waitUntil(async () => (await stage.runtime.liveStreams.readTail(id)).at(-1)?.end === true)
    const live = await stage.runtime.liveStreams.read(id, 0)

    worker.kill('SIGCONT')
    zombie.resolve()
    await closed.promise
    // The old worker has noticed once it is there again under a new id.
    await waitUntil(async () => (await stage.runtime.database.worker.count({ where: { pid: worker.pid } })) === 1)
    raw.answer('still well?', says('yes'))
    const others = await Promise.all(Array.from({ length: 4 }, () => runRoot(stage, 'bot', 'still well?')))
    expect(others.map(({ state }) => state)).toEqual(Array.from({ length: 4 }, () => 'completed'))

    expect(await readJob(stage, id)).toEqual(ended)
    expect(await stage.runtime.liveStreams.read(id, 0)).toEqual(live)
    expect(await stage.runtime.database.aiMessage.count({ where: { jobId: id } })).toBe(1)
    expect((await eventsOf(stage, id)).filter((kind) => kind === 'ended')).toHaveLength(1)
    expect(await stage.notesOf('iced')).toEqual(['note iced'])
  })
})
