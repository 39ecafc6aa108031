// Jobs that no worker runs: what a test needs to bring rows where it wants them, through the ordinary operations.
import type { ProgramSpawnInput } from '@offshoot/shared/contracts/spawn'
import { type AgentJob, type Claim, claimJob, type ClaimedJob, type Ending } from '@offshoot/shared/db/agent-jobs'
import { toolsOfJob } from '@offshoot/shared/db/bots'
import { newId } from '@offshoot/shared/ids'
import { type AnsweredCalls, answerSpawnCalls } from '@offshoot/shared/operations/answer-spawn-calls'
import { delegatesOfJob, type SpawnOrigin } from '@offshoot/shared/operations/prepare-spawn'
import { type SpawnAnswer, spawnAgent } from '@offshoot/shared/operations/spawn-agent'
import type { Runtime } from '@offshoot/shared/runtime'

/** A spawn as a user's host or HTTP call asks for it. */
export function hostOrigin(userId: string, more: Partial<SpawnOrigin> = {}): SpawnOrigin {
  return { userId, delegateUserIds: [], depth: 0, parentConvoId: null, spaceId: null, ...more }
}

/** A spawn as a running job asks for it in one of its steps. */
export function jobOrigin(parent: AgentJob, step: number, toolCallId: string): SpawnOrigin {
  const { id: jobId, rootJobId, ancestorIds, triggeredByIds, grant, runner, layers } = parent
  return {
    userId: parent.ownerId,
    delegateUserIds: delegatesOfJob(parent),
    depth: parent.depth,
    parentConvoId: parent.convoId,
    spaceId: null,
    parent: {
      jobId,
      rootJobId,
      ancestorIds,
      triggeredByIds,
      step,
      toolCallId,
      tools: toolsOfJob(parent),
      layers,
      grant,
      runner,
      deadlineMsLeft: parent.timeoutMs,
    },
  }
}

/** An async spawn of `forge/writer`, unless `more` says otherwise. */
export function spawnInput(more: Partial<ProgramSpawnInput> = {}): ProgramSpawnInput {
  return { bot: { botGroup: 'forge', botHandle: 'writer' }, message: 'Write.', mode: 'async', ...more }
}

/** Spawns as `userId`'s host would. @throws Error when the spawn is not accepted */
export async function spawnJob(
  runtime: Runtime,
  userId: string,
  more: Partial<ProgramSpawnInput> = {},
  origin: Partial<SpawnOrigin> = {},
): Promise<AgentJob> {
  return acceptedJob(await spawnAgent(runtime, hostOrigin(userId, origin), spawnInput(more)))
}

export function acceptedJob(answer: SpawnAnswer): AgentJob {
  if (answer.kind === 'accepted') return answer.job
  throw new Error(`The spawn was not accepted: ${JSON.stringify(answer)}`)
}

/** Claims the job's present delivery, as a worker would. @throws Error when the claim is refused */
export async function claimNext(
  runtime: Pick<Runtime, 'database'>,
  jobId: string,
  workerId = 'test-worker',
): Promise<ClaimedJob> {
  const { deliverySeq } = await runtime.database.agentJob.findUniqueOrThrow({ where: { id: jobId } })
  const claimed = await claimJob(runtime.database, { jobId, token: newId(), deliverySeq, workerId })
  if (claimed === null) throw new Error(`Job ${jobId} could not be claimed.`)
  return claimed
}

export function claimOf(job: ClaimedJob): Claim {
  return { jobId: job.id, token: job.claimToken }
}

/** Spawns children in one step of a claimed job. With a sync child among them the job waits afterwards. */
export async function spawnChildren(
  runtime: Runtime,
  parent: ClaimedJob,
  inputs: readonly Partial<ProgramSpawnInput>[],
  step = 0,
): Promise<{ answer: AnsweredCalls; children: AgentJob[] }> {
  const answer = await answerSpawnCalls(
    runtime,
    {
      claim: claimOf(parent),
      rootJobId: parent.rootJobId,
      step,
      originOf: (toolCallId) => jobOrigin(parent, step, toolCallId),
    },
    inputs.map((input, at) => ({ toolCallId: `call_${at}`, toolName: 'spawnAgent', input: spawnInput(input) })),
  )
  const children = await runtime.database.agentJob.findMany({
    where: { parentJobId: parent.id, parentStep: step },
    orderBy: { parentToolCallId: 'asc' },
  })
  return { answer, children }
}

/** The same for one child, which is accepted. */
export async function spawnChild(
  runtime: Runtime,
  parent: ClaimedJob,
  input: Partial<ProgramSpawnInput> = {},
  step = 0,
): Promise<AgentJob> {
  const { answer, children } = await spawnChildren(runtime, parent, [input], step)
  if (children[0] === undefined) throw new Error(`The child was not accepted: ${JSON.stringify(answer)}`)
  return children[0]
}

export const COMPLETED: Ending = { state: 'completed', reason: 'completed', result: 'done', partial: false }
