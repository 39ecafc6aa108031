// The runners `queue` and `inline` do the same. Everything here runs through one slot.
import type { UIMessageChunk } from 'ai'
import { programSpawnInputSchema, type SpawnOutput, type SpawnProgress } from '@offshoot/shared/contracts/spawn'
import { loadSteps, loadToolCalls } from '@offshoot/shared/db/journal'
import { checkAgent } from '@offshoot/shared/operations/check-agent'
import { followAgent } from '@offshoot/shared/operations/follow-agent'
import { insertSteer } from '@offshoot/shared/operations/steer-agent'
import { lockTree, transact } from '@offshoot/shared/operations/transact'
import { runSpawn } from '@offshoot/shared/tools/spawn-agent'
import {
  abort,
  answerOf,
  childrenOf,
  endOf,
  eventsOf,
  readJob,
  runRoot,
  spawnOf,
  spawnRoot,
  untilLiveText,
} from '@offshoot/testing/agents'
import { hostOrigin } from '@offshoot/testing/jobs-without-worker'
import {
  callsTool,
  type RawModel,
  type RawScript,
  says,
  startRawModel,
  staysSilent,
  ticking,
} from '@offshoot/testing/raw-model'
import type { TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openInlineStage } from './inline-stage.ts'
import { openWorkerStage } from './worker-stage.ts'

/** Spawns `forge/bot` in sync mode, once for each message. */
const spawns =
  (...messages: string[]): RawScript =>
  (reply) => {
    for (const [at, message] of messages.entries()) reply.call('spawnAgent', spawnOf('bot', message), `call_${at}`)
    reply.finish()
  }

type OpenStage = (baseUrl: string, options: { environment: Record<string, string> }) => Promise<TestStage>
const RUNNERS: [string, OpenStage][] = [
  ['queue', openWorkerStage],
  ['inline', openInlineStage],
]

describe.each(RUNNERS)('the runner %s', (runner, openStage) => {
  let raw: RawModel
  let stage: TestStage
  beforeAll(async () => {
    raw = await startRawModel()
    // Nothing here waits for a heartbeat.
    const heartbeat = { WORKER_HEARTBEAT_MS: '60000', WORKER_LOCK_MS: '180000' }
    stage = await openStage(raw.baseUrl, { environment: { WORKER_CONCURRENCY: '1', ...heartbeat } })
    await stage.putBot('bot')
  })
  afterAll(async () => {
    await stage.close()
    await raw.stop()
  })

  const alice = { userId: 'alice', admin: false }
  const looks = callsTool('checkAgent', { jobId: 'nothing' })

  test('a sync spawn shows the growing message, and ends with the outcome', async () => {
    const grown = Promise.withResolvers<void>()
    raw.answer('write', async (reply) => {
      reply.text('A ')
      await grown.promise
      reply.text('poem.')
      reply.finish()
    })
    const input = programSpawnInputSchema.parse(spawnOf('bot', 'write'))
    const shown: (SpawnProgress | SpawnOutput)[] = []
    for await (const output of runSpawn(stage.runtime, hostOrigin('alice'), input, undefined)) {
      shown.push(output)
      grown.resolve()
    }
    expect(shown[0]).toMatchObject({ mode: 'sync', state: 'running', message: { role: 'assistant' } })
    expect(shown.at(-1)).toMatchObject({
      mode: 'sync',
      state: 'completed',
      result: 'A poem.',
      steps: 1,
      usage: { totalTokens: 15 },
      messages: [{ role: 'user' }, { role: 'assistant' }],
    })
    expect(await readJob(stage, shown.at(-1)?.jobId ?? '')).toMatchObject({ runner, attempt: 1, deliverySeq: 1 })
  })

  test('STATE-11, COST-6: a check right after an async spawn finds the job, and one that waits answers at its end', async () => {
    const finish = Promise.withResolvers<void>()
    raw.answer('think', async (reply) => {
      reply.text('Hm. ')
      await finish.promise
      reply.finish()
    })
    const { id } = await spawnRoot(stage, 'bot', 'think')
    const check = { jobId: id, includePartial: true }
    expect(await checkAgent(stage.runtime, alice, { ...check, waitSeconds: 0 })).toMatchObject({ jobId: id })
    await untilLiveText(stage, id, 'Hm.')
    expect(await checkAgent(stage.runtime, alice, { ...check, waitSeconds: 0 })).toMatchObject({
      state: 'running',
      progress: { step: 0, lastText: 'Hm. ' },
    })
    const answer = checkAgent(stage.runtime, alice, { ...check, waitSeconds: 60 })
    finish.resolve()
    expect(await answer).toMatchObject({ state: 'completed', result: 'Hm. ', steps: 1 })
    const { finishedAt } = await readJob(stage, id)
    expect(Date.now() - (finishedAt?.getTime() ?? 0)).toBeLessThan(500)
  })

  test('STUCK-1: a tree of depth 3 finishes with one slot, in one place, and a fourth level is refused', async () => {
    raw.answer('level 1', spawns('left', 'right'), says('one done'))
    for (const side of ['left', 'right']) raw.answer(side, spawns(`${side} below`), says('two done'))
    for (const side of ['left', 'right']) raw.answer(`${side} below`, spawns('too deep'), says('three done'))
    const root = await runRoot(stage, 'bot', 'level 1')
    const jobs = await stage.runtime.database.agentJob.findMany({ where: { rootJobId: root.id } })
    expect(
      jobs.map(({ depth, state, result, attempt }) => `${depth} ${state} ${result} ${attempt}`).toSorted(),
    ).toEqual([
      '1 completed one done 2',
      '2 completed two done 2',
      '2 completed two done 2',
      '3 completed three done 1',
      '3 completed three done 1',
    ])
    expect(new Set(jobs.map((job) => job.runner))).toEqual(new Set([runner]))
    expect(raw.requests('too deep')).toEqual([])
  })

  test('LOSS-1: steps and tool calls are stored as they happen', async () => {
    const last = Promise.withResolvers<void>()
    raw.answer('look twice', looks, looks, async (reply) => {
      await last.promise
      reply.text('Nothing there.')
      reply.finish()
    })
    const { id } = await spawnRoot(stage, 'bot', 'look twice')
    await waitUntil(() => raw.requests('look twice').length === 3)
    expect(await loadSteps(stage.runtime.database, id)).toMatchObject([{ index: 0 }, { index: 1 }])
    const output = { state: 'failed', error: 'Job nothing not found.' }
    expect(await loadToolCalls(stage.runtime.database, id)).toMatchObject([
      { stepIndex: 0, toolName: 'checkAgent', outcome: { output } },
      { stepIndex: 1, toolName: 'checkAgent', outcome: { output } },
    ])
    last.resolve()
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', steps: 3, totalTokens: 45n })
    expect((await answerOf(stage, id)).filter(({ type }) => type === 'tool-checkAgent')).toHaveLength(2)
    expect(await eventsOf(stage, id)).toEqual(['spawned', 'ended'])
  })

  test('LOSS-3: an abort in mid-stream keeps what was said and closes the connection to the model', async () => {
    raw.answer('never end', ticking)
    const { id } = await spawnRoot(stage, 'bot', 'never end')
    await untilLiveText(stage, id, 'tick')
    const before = performance.now()
    const answer = await abort(stage, id, 'enough')
    expect(performance.now() - before).toBeLessThan(1_000)
    expect(answer).toMatchObject({ jobId: id, state: 'aborted', partialResult: expect.stringMatching(/^tick/) })
    expect(await readJob(stage, id)).toMatchObject({ reason: 'aborted_by_user', error: 'enough', partial: true })
    await waitUntil(() => raw.requests('never end')[0]?.closedByPeerAt, { within: 2_000 })
  })

  test('COST-1: an abort ends a parent that waits, its child that runs, and the one that has no slot yet', async () => {
    raw.answer('split', spawns('runs on', 'runs on'))
    raw.answer('runs on', ticking)
    const { id } = await spawnRoot(stage, 'bot', 'split')
    const children = await waitUntil(async () => {
      const found = await childrenOf(stage, id)
      return found.some(({ state }) => state === 'running') && found
    })
    expect(await abort(stage, id)).toMatchObject({ state: 'aborted', abortedDescendants: 2 })
    for (const child of children)
      expect(await endOf(stage, child.id)).toMatchObject({ state: 'aborted', reason: 'aborted_by_parent' })
    expect(raw.requests('runs on')).toHaveLength(1)
  })

  test('STATE-3: a job that runs out of its time fails with what it had', async () => {
    raw.answer('take your time', looks, ticking)
    const job = await runRoot(stage, 'bot', 'take your time', { timeoutSeconds: 1 })
    expect(job).toMatchObject({ state: 'failed', reason: 'timeout_total', partial: true, steps: 1 })
    expect(job.result).toMatch(/^tick/)
  })

  test('STUCK-3: a job that waits for its provider holds no slot, and ends by its deadline', async () => {
    raw.answer('busy', (reply) => reply.status(429, { message: 'slow down' }, { 'retry-after': '30' }))
    raw.answer('meanwhile', says('I had the slot'))
    const { id } = await spawnRoot(stage, 'bot', 'busy')
    await waitUntil(async () => (await readJob(stage, id)).waitingOn === 'retry')
    expect(await runRoot(stage, 'bot', 'meanwhile')).toMatchObject({ result: 'I had the slot' })
    await stage.runtime.database.agentJob.update({ where: { id }, data: { waitUntil: new Date(0) } })
    await waitUntil(() => raw.requests('busy').length === 2)
    await waitUntil(async () => (await readJob(stage, id)).waitingOn === 'retry')
    await stage.runtime.database.agentJob.update({ where: { id }, data: { deadlineAt: new Date(0) } })
    expect(await endOf(stage, id)).toMatchObject({ state: 'failed', reason: 'timeout_total', attempt: 2 })
  })

  test('a steer of a running job is read at its next step', async () => {
    const steered = Promise.withResolvers<void>()
    raw.answer('walk', async (reply) => {
      reply.text('Walking.')
      await steered.promise
      reply.call('checkAgent', { jobId: 'nothing' }, 'call_look')
      reply.finish()
    })
    raw.answer('turn left', says('turned'))
    const job = await spawnRoot(stage, 'bot', 'walk')
    await untilLiveText(stage, job.id, 'Walking.')
    const accepted = await transact(stage.runtime, async (tx) => {
      await lockTree(tx, job.rootJobId)
      return insertSteer(tx, job.id, { key: `steer:${job.id}`, text: 'turn left', actorId: 'alice' })
    })
    expect(accepted).toEqual({ receiverId: job.id })
    steered.resolve()
    expect(await endOf(stage, job.id)).toMatchObject({ state: 'completed', result: 'turned', steps: 2 })
  })

  test('STATE-22: a follower sees every frame once, while they come and again later, from start to one end', async () => {
    raw.answer('tell', looks, (reply) => {
      for (const word of ['It ', 'is ', 'done.']) reply.text(word)
      reply.finish()
    })
    const { id } = await spawnRoot(stage, 'bot', 'tell')
    const framesOf = async (): Promise<UIMessageChunk[]> => {
      const frames: UIMessageChunk[] = []
      for await (const { seq, chunk } of followAgent(stage.runtime, id, { signal: AbortSignal.timeout(20_000) })) {
        frames.push(chunk)
        expect(seq).toBe(frames.length)
      }
      return frames
    }
    const frames = await framesOf()
    expect(frames.map(({ type }) => type).filter((type) => !type.endsWith('-delta'))).toEqual([
      'start',
      'start-step',
      'tool-input-start',
      'tool-input-available',
      'tool-output-available',
      'finish-step',
      'start-step',
      'text-start',
      'text-end',
      'finish-step',
      'finish',
    ])
    expect(frames.flatMap((chunk) => (chunk.type === 'text-delta' ? [chunk.delta] : [])).join('')).toBe('It is done.')
    expect(await framesOf()).toEqual(frames)
  })

  test('STATE-5: what a provider does wrong is said, with what there was before', async () => {
    raw.answer('no key', (reply) => reply.status(401, { message: 'bad key' }))
    raw.answer('cut', looks, (reply) => {
      reply.text('Half a ')
      setTimeout(() => reply.reset(), 50)
    })
    raw.answer('too long', (reply) => {
      reply.text('Endless')
      reply.finish({ incomplete: 'max_output_tokens' })
    })
    raw.answer('mute', (reply) => reply.finish())
    expect(await runRoot(stage, 'bot', 'no key')).toMatchObject({ state: 'failed', reason: 'model_auth', steps: 0 })
    expect(await runRoot(stage, 'bot', 'cut')).toMatchObject({
      state: 'failed',
      reason: 'upstream_disconnect',
      result: 'Half a ',
      partial: true,
      steps: 1,
    })
    expect(await runRoot(stage, 'bot', 'too long')).toMatchObject({ reason: 'output_limit', result: 'Endless' })
    expect(await runRoot(stage, 'bot', 'mute')).toMatchObject({ state: 'failed', reason: 'empty_output' })
  })

  test('LOSS-6: the failure of a child reaches its waiting parent', async () => {
    raw.answer('ask', callsTool('spawnAgent', spawnOf('bot', 'fail')), says('it failed'))
    raw.answer('fail', (reply) => reply.status(401, { message: 'bad key' }))
    const job = await runRoot(stage, 'bot', 'ask')
    expect(job).toMatchObject({ state: 'completed', result: 'it failed', attempt: 2 })
    const [child] = await childrenOf(stage, job.id)
    expect(child).toMatchObject({ state: 'failed', reason: 'model_auth', runner })
  })

  test('STUCK-17: an urgent job is taken before one that was spawned earlier', async () => {
    const finish = Promise.withResolvers<void>()
    raw.answer('hold the slot', async (reply) => {
      reply.text('Mine')
      await finish.promise
      reply.finish()
    })
    for (const message of ['can wait', 'urgent']) raw.answer(message, says('done'))
    const first = await spawnRoot(stage, 'bot', 'hold the slot')
    await untilLiveText(stage, first.id, 'Mine')
    const slow = await spawnRoot(stage, 'bot', 'can wait', { priority: 500 })
    const fast = await spawnRoot(stage, 'bot', 'urgent')
    finish.resolve()
    const [late, early] = [await endOf(stage, slow.id), await endOf(stage, fast.id)]
    expect(early.startedAt?.getTime()).toBeLessThan(late.startedAt?.getTime() ?? 0)
  })

  test('a parent that parks holds no slot, and is woken by the outcome of its async child', async () => {
    const heard = { mode: 'async', notifyParent: true }
    raw.answer('garden', callsTool('spawnAgent', spawnOf('bot', 'dig', heard)), says('Started.'))
    raw.answer('dig', says('dug'))
    raw.answer(/^\[outcome of your sub-agent/, says('All is dug.'))
    const job = await spawnRoot(stage, 'bot', 'garden')
    expect(await endOf(stage, job.id)).toMatchObject({ state: 'completed', result: 'All is dug.', parks: 1, steps: 3 })
    expect(await eventsOf(stage, job.id)).toEqual(['spawned', 'waiting', 'woken', 'ended'])
    expect(await childrenOf(stage, job.id)).toMatchObject([{ runner, state: 'completed', result: 'dug' }])
  })

  test('STUCK-2: the abort of a child wakes its waiting parent', async () => {
    raw.answer('wait for me', callsTool('spawnAgent', spawnOf('bot', 'never comes')), says('went on'))
    raw.answer('never comes', staysSilent)
    const { id } = await spawnRoot(stage, 'bot', 'wait for me')
    await waitUntil(() => raw.requests('never comes').length === 1)
    const [child] = await childrenOf(stage, id)
    expect(await readJob(stage, id)).toMatchObject({ state: 'running', waitingOn: 'children', claimToken: null })
    await abort(stage, child?.id ?? '')
    expect(await endOf(stage, id)).toMatchObject({ state: 'completed', result: 'went on' })
  })
})
