// A tree of 1-3-9 jobs in mixed states is aborted at its root.
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { AgentJob } from '@offshoot/shared/db/agent-jobs'
import { requestAbort } from '@offshoot/shared/operations/abort-agent'
import { childrenOf, eventsOf, readJob, spawnOf, spawnRoot } from '@offshoot/testing/agents'
import {
  callsTool,
  type RawModel,
  type RawScript,
  says,
  startRawModel,
  staysSilent,
  ticking,
} from '@offshoot/testing/raw-model'
import { waitUntil } from '@offshoot/testing/wait-until'
import { tool } from 'ai'
import { z } from 'zod'
import { openWorkerStage, type WorkerStage } from './worker-stage.ts'

let raw: RawModel
let stage: WorkerStage

beforeAll(async () => {
  raw = await startRawModel()
  stage = await openWorkerStage(raw.baseUrl, {
    // A slot for each job: with fewer, those that hang can hold all before the others had theirs.
    environment: { WORKER_CONCURRENCY: '13' },
    extensions: {
      tools: [
        {
          id: 'hangInTree',
          group: 'test',
          userSelect: false,
          tool: tool({ inputSchema: z.object({}), execute: () => new Promise(() => undefined) }),
        },
      ],
    },
  })
  await stage.putBot('bot', { toolNames: ['spawnAgent', 'hangInTree'] })
})

afterAll(async () => {
  await stage.close()
  await raw.stop()
})

const later: RawScript = (reply) => reply.status(429, { message: 'later' }, { 'retry-after': '60' })
/** What the nine do, three for each child. */
const WORK: Record<string, RawScript> = {
  'done one': says('done'),
  'done two': says('done'),
  'rate limited': later,
  'in text': ticking,
  'before headers': staysSilent,
  'in a tool': callsTool('hangInTree', {}),
  'in text, too': ticking,
  'silent, too': staysSilent,
  'in text, three': ticking,
}

function spawnsAll(messages: readonly string[]): RawScript {
  return (reply) => {
    for (const [at, message] of messages.entries()) reply.call('spawnAgent', spawnOf('bot', message), `call_${at}`)
    reply.finish()
  }
}

/** Opens the tree, and answers its jobs once nine of them are where they should be. */
async function openTree(name: string): Promise<AgentJob> {
  const of = (message: string) => `${name}: ${message}`
  const works = Object.keys(WORK)
  raw.answer(of('lead'), spawnsAll(['a', 'b', 'c'].map(of)))
  for (const [at, child] of ['a', 'b', 'c'].entries())
    raw.answer(of(child), spawnsAll(works.slice(3 * at, 3 * at + 3).map(of)))
  for (const [message, script] of Object.entries(WORK)) raw.answer(of(message), script)
  const root = await spawnRoot(stage, 'bot', of('lead'))
  await waitUntil(
    async () => {
      const jobs = await stage.runtime.database.agentJob.findMany({ where: { rootJobId: root.id } })
      const count = (fits: (job: AgentJob) => boolean) => jobs.filter(fits).length
      return (
        jobs.length === 13 &&
        count((job) => job.state === 'completed') === 2 &&
        count((job) => job.waitingOn === 'children') === 4 &&
        count((job) => job.waitingOn === 'retry') === 1 &&
        count((job) => job.claimToken !== null && job.state === 'running') === 6
      )
    },
    { what: 'a tree of 13 jobs in mixed states' },
  )
  // Each of the six has reached its model or its tool.
  await waitUntil(() => works.slice(3).every((message) => raw.requests(of(message)).length > 0))
  return root
}

/** The jobs of the tree once none is live. */
async function endsOf(root: AgentJob, within: number): Promise<AgentJob[]> {
  return waitUntil(
    async () => {
      const jobs = await stage.runtime.database.agentJob.findMany({ where: { rootJobId: root.id } })
      return jobs.every((job) => job.finishedAt !== null) && jobs
    },
    { within, what: 'the end of the whole tree' },
  )
}

describe.each([
  { how: 'with signals', lost: false, limitMs: 2_000 },
  { how: 'without any signal', lost: true, limitMs: 1_500 },
])('COST-1 STUCK-4: $how', ({ how, lost, limitMs }) => {
  test('all 13 end right in time, and every connection to the provider is closed', async () => {
    const root = await openTree(how)
    const { runtime } = stage
    const signals = lost ? { ...runtime.signals, publish: () => undefined } : runtime.signals
    const wish = { by: 'alice', reason: 'aborted_by_user' as const, text: null }
    const { abortedDescendants } = await requestAbort({ ...runtime, signals }, root, wish)
    // Ten below the root were live: two had completed.
    expect(abortedDescendants).toBe(10)
    const jobs = await endsOf(root, limitMs)
    expect(jobs.filter((job) => job.state === 'completed').map((job) => job.result)).toEqual(['done', 'done'])
    for (const job of jobs.filter((each) => each.state !== 'completed'))
      expect(job).toMatchObject({
        state: 'aborted',
        reason: job.id === root.id ? 'aborted_by_user' : 'aborted_by_parent',
      })
    for (const job of jobs) expect((await eventsOf(stage, job.id)).filter((kind) => kind === 'ended')).toHaveLength(1)
    const open = ['in text', 'before headers', 'in text, too', 'silent, too', 'in text, three']
    for (const message of open)
      await waitUntil(
        () => raw.requests(`${how}: ${message}`).every((request) => request.closedByPeerAt !== undefined),
        {
          within: limitMs,
          what: `the end of the connection of "${message}"`,
        },
      )
    // Text that had come is kept.
    const texts = jobs.filter((job) => job.partial && job.result?.includes('tick'))
    expect(texts).toHaveLength(3)
    expect(await readJob(stage, root.id)).toMatchObject({ state: 'aborted', partial: true })
    expect(await childrenOf(stage, root.id)).toHaveLength(3)
  })
})
