// The spawn calls of one step of a running job: all of them in one transaction under the tree's lock, in which the
// parent's claim and abort wish are checked. A call that was answered by an earlier attempt finds its child again by
// (parent job, step, tool call id). When a sync child is still live, the same transaction stores the wait.
import type { AgentJob } from '../db/agent-jobs.ts'
import { type Claim, type ReleasedClaim, storeWaitingJob } from '../db/agent-jobs.ts'
import { insertToolEnd } from '../db/journal.ts'
import { sql } from '../db/database.ts'
import { storedText } from '../db/stored-value.ts'
import type { ProgramSpawnInput, SpawnOutput } from '../contracts/spawn.ts'
import { isTerminal } from '../contracts/job-state.ts'
import { toParentOutput } from '../agent-views.ts'
import type { Runtime } from '../runtime.ts'
import { type PreparedSpawn, prepareSpawn, refuse, type Refusal, type SpawnOrigin } from './prepare-spawn.ts'
import { refusedEvent } from './refusals.ts'
import { asyncOutput, insertSpawn, refusedOutput } from './spawn-agent.ts'
import { lockTree, transact, type Tx } from './transact.ts'

export interface SpawnCall {
  toolCallId: string
  toolName: string
  /** The parsed input, or why it could not be parsed. */
  input: ProgramSpawnInput | { invalid: string }
}

export type AnsweredCalls =
  | { kind: 'answered'; outputs: Map<string, SpawnOutput> }
  /** The job waits now and holds no claim any more. */
  | { kind: 'waiting'; liveChildren: number }
  /** The claim is lost, or there is an abort wish: nothing was written. */
  | { kind: 'stopped' }

export interface SpawningJob {
  claim: Claim & ReleasedClaim
  rootJobId: string
  step: number
  /** How a spawn of this job asks; the tool call id is added for each call. */
  originOf(toolCallId: string): SpawnOrigin
}

type PreparedCall = SpawnCall & { prepared: PreparedSpawn | Refusal }

export async function answerSpawnCalls(
  runtime: Runtime,
  job: SpawningJob,
  calls: readonly SpawnCall[],
): Promise<AnsweredCalls> {
  // One after the other: the children's ids then sort as the model wrote the calls.
  const prepared: PreparedCall[] = []
  for (const call of calls) prepared.push(await prepareCall(runtime, job, call))
  return transact(runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    if (!(await holdsUnaborted(tx, job.claim))) return { kind: 'stopped' }
    const outputs = new Map<string, SpawnOutput>()
    let liveChildren = 0
    for (const call of prepared) {
      const output = await answerCall(runtime, tx, job, call)
      if (output === 'live') liveChildren += 1
      else outputs.set(call.toolCallId, output)
    }
    if (liveChildren === 0) return { kind: 'answered', outputs }
    const stored = await storeWaitingJob(tx.db, job.claim, { on: 'children', forMs: null })
    if (!stored) return { kind: 'stopped' }
    tx.record({ jobId: job.claim.jobId, kind: 'waiting', data: { on: 'children', liveChildren } })
    return { kind: 'waiting', liveChildren }
  })
}

async function prepareCall(runtime: Runtime, job: SpawningJob, call: SpawnCall): Promise<PreparedCall> {
  const prepared =
    'invalid' in call.input
      ? refuse('invalid_tool_input', call.input.invalid)
      : await prepareSpawn(runtime, job.originOf(call.toolCallId), call.input)
  return { ...call, prepared }
}

/** The output of a call, stored; or `live` for a sync child that has not ended. */
async function answerCall(
  runtime: Runtime,
  tx: Tx,
  job: SpawningJob,
  call: PreparedCall,
): Promise<SpawnOutput | 'live'> {
  const mode = 'invalid' in call.input ? 'sync' : call.input.mode
  const child =
    (await findChild(tx, job, call.toolCallId)) ??
    ('refused' in call.prepared ? call.prepared : await insertSpawn(runtime, tx, call.prepared))
  let output: SpawnOutput
  if ('refused' in child) {
    const { userId: actorId } = job.originOf(call.toolCallId)
    const { reason, error } = child
    tx.record(refusedEvent({ jobId: job.claim.jobId, actorId, what: 'spawn', step: job.step, reason, error }))
    output = refusedOutput({ mode }, child)
  } else if (child.mode === 'async') output = asyncOutput(child)
  else if (isTerminal(child.state)) output = toParentOutput(child)
  else return 'live'
  await insertToolEnd(tx.db, job.claim.jobId, {
    stepIndex: job.step,
    toolCallId: call.toolCallId,
    toolName: call.toolName,
    outcome: { output },
  })
  return output
}

async function findChild(tx: Tx, job: SpawningJob, toolCallId: string): Promise<AgentJob | null> {
  return tx.db.agentJob.findUnique({
    where: {
      parentJobId_parentStep_parentToolCallId: {
        parentJobId: job.claim.jobId,
        parentStep: job.step,
        parentToolCallId: storedText(toolCallId),
      },
    },
  })
}

async function holdsUnaborted(tx: Tx, claim: Claim): Promise<boolean> {
  const rows = await tx.db.$queryRaw<unknown[]>(sql`
    select 1 from "offshoot"."AgentJob"
    where "id" = ${claim.jobId} and "claimToken" = ${claim.token} and "state" = 'running' and "abortRequestedAt" is null for update`)
  return rows.length === 1
}
