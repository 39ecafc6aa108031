import { jsonSchema, readUIMessageStream, tool, type Tool, type UIMessage, type UIMessageChunk } from 'ai'
import { shortenedResult, toSyncOutput } from '../agent-views.ts'
import { isTerminal } from '../contracts/job-state.ts'
import {
  type ProgramSpawnInput,
  type RefusedSpawnOutput,
  type SpawnInput,
  spawnInputSchema,
  type SpawnOutput,
  type SpawnProgress,
  type SyncSpawnOutput,
} from '../contracts/spawn.ts'
import { tailOf } from '../contracts/text.ts'
import { type AgentJob, readDeadlineMsLeft } from '../db/agent-jobs.ts'
import { toolsOfJob } from '../db/bots.ts'
import { storable } from '../db/stored-value.ts'
import { newId } from '../ids.ts'
import { requestAbort } from '../operations/abort-agent.ts'
import { followAgent } from '../operations/follow-agent.ts'
import { delegatesOfJob, refuse, type SpawnOrigin } from '../operations/prepare-spawn.ts'
import { asyncOutput, refusedOutput, type SpawnAnswer, spawnAgent } from '../operations/spawn-agent.ts'
import { waitForOutcome } from '../operations/wait-for-agent.ts'
import type { Runtime } from '../runtime.ts'
import { assertSpawnContext, getSpawnContext, type SpawnContext } from '../spawn-context.ts'
import { modelInput } from './model-input.ts'

const DESCRIPTION =
  'Starts a sub-agent: another bot that works on a task in its own conversation and sees only the message you give it. ' +
  'In sync mode (the default) you get its result; several calls in one step run side by side. In async mode you get a job id at once and go on.'

/** A growing message is shown at most this often, and no longer than this. */
const PROGRESS_EVERY_MS = 250
const PROGRESS_LENGTH = 20_000

type SpawnTool = Tool<SpawnInput, SpawnOutput | SpawnProgress>

/** Inside a worker the tool has no `execute`: the step ends with the call open, and the runner answers it. */
export function spawnAgentToolForWorker(): SpawnTool {
  return {
    description: DESCRIPTION,
    inputSchema: modelInput(spawnInputSchema, ['message', 'bot']),
    outputSchema: jsonSchema<SpawnOutput | SpawnProgress>({ type: 'object' }),
    toModelOutput: ({ output }) => spawnModelOutput(output),
  }
}

/** In a host the tool waits by row and signal, shows the sub-agent's growing message, and passes the caller's abort on. */
export function spawnAgentToolForHost(
  runtime: Runtime,
  { canReadOn, run }: { canReadOn: boolean; run: typeof runSpawn },
): SpawnTool {
  return tool({
    description: DESCRIPTION,
    inputSchema: modelInput(spawnInputSchema, ['message', 'bot']),
    toModelOutput: ({ output }) => spawnModelOutput(output, canReadOn),
    async *execute(input: SpawnInput, { abortSignal }) {
      const origin = await originOfContext(runtime, getSpawnContext())
      yield* run(runtime, origin, input, abortSignal)
    },
  })
}

/** Where a host's spawn comes from. With a `parentJobId` it is a child of that job, which must be the caller's and live. */
export async function originOfContext({ database }: Runtime, given: SpawnContext): Promise<SpawnOrigin> {
  assertSpawnContext(given)
  const context = storable(given)
  const origin: SpawnOrigin = {
    userId: context.userId,
    delegateUserIds: context.delegateUserIds ?? [],
    depth: context.spawnDepth,
    parentConvoId: context.parentConvoId,
    // A child's convo has no space unless it runs as the parent's owner.
    spaceId: context.userId === context.parentConvoOwnerId ? context.parentConvoSpaceId : null,
  }
  if (context.parentJobId === undefined) return origin
  const parent = await database.agentJob.findFirst({
    where: { id: context.parentJobId, ownerId: context.userId, state: { in: ['pending', 'running'] } },
  })
  if (parent === null)
    throw new Error(
      `The spawn context names the parent job ${context.parentJobId}, which is not a live job of user ${context.userId}.`,
    )
  const { id: jobId, rootJobId, ancestorIds, triggeredByIds, steps: step, grant, runner, layers, depth } = parent
  const deadlineMsLeft = await readDeadlineMsLeft(database, jobId)
  const tools = toolsOfJob(parent)
  // Not the id of the host's own tool call: endpoints reuse those, and it would stand for a call of the parent job's model.
  const toolCallId = `host:${newId()}`
  return {
    ...origin,
    // What a context says is never more than what the parent has.
    depth: Math.max(origin.depth, depth),
    delegateUserIds: delegatesOfJob(parent).filter((userId) => origin.delegateUserIds.includes(userId)),
    parent: {
      jobId,
      rootJobId,
      ancestorIds,
      triggeredByIds,
      step,
      toolCallId,
      tools,
      layers,
      grant,
      runner,
      deadlineMsLeft,
    },
  }
}

/** A spawn that was not accepted, as an output. */
export function refusalOf(
  input: ProgramSpawnInput,
  answer: Exclude<SpawnAnswer, { kind: 'accepted' }>,
): RefusedSpawnOutput {
  return refusedOutput(
    input,
    answer.kind === 'refused'
      ? answer.refusal
      : refuse('invalid_request', 'The idempotency key was used for another request. Use a new key.'),
  )
}

/** Spawns; in sync mode yields the sub-agent's message as it grows, and last the outcome. Refusals are outputs. */
export async function* runSpawn(
  runtime: Runtime,
  origin: SpawnOrigin,
  input: ProgramSpawnInput,
  abortSignal: AbortSignal | undefined,
): AsyncGenerator<SpawnOutput | SpawnProgress> {
  const answer = await spawnAgent(runtime, origin, input)
  if (answer.kind !== 'accepted') return yield refusalOf(input, answer)
  const { job } = answer
  if (input.mode === 'async') return yield asyncOutput(job)
  const forget = abortWith(runtime, job, origin.userId, abortSignal)
  try {
    for await (const message of growingMessage(runtime, job.id)) {
      yield { mode: 'sync', jobId: job.id, convoId: job.convoId, state: 'running', message }
    }
    yield await outcomeOf(runtime, job.id)
  } finally {
    forget()
  }
}

/** Spawns, and waits for the outcome without looking at what the sub-agent says meanwhile. */
export async function runSpawnToEnd(
  runtime: Runtime,
  origin: SpawnOrigin,
  input: ProgramSpawnInput,
  abortSignal: AbortSignal | undefined,
): Promise<RefusedSpawnOutput | SyncSpawnOutput> {
  const answer = await spawnAgent(runtime, origin, input)
  if (answer.kind !== 'accepted') return refusalOf(input, answer)
  const forget = abortWith(runtime, answer.job, origin.userId, abortSignal)
  try {
    return await outcomeOf(runtime, answer.job.id)
  } finally {
    forget()
  }
}

/** Lets a signal abort a job, until the returned function is called. */
function abortWith(runtime: Runtime, job: AgentJob, userId: string, signal: AbortSignal | undefined): () => void {
  const onAbort = () => {
    void requestAbort(runtime, job, { by: userId, reason: 'aborted_by_parent', text: null }).catch((error: unknown) => {
      runtime.logger.error({ jobId: job.id, error }, 'the abort of a sync sub-agent could not be stored')
    })
  }
  signal?.addEventListener('abort', onAbort, { once: true })
  if (signal?.aborted === true) onAbort()
  return () => signal?.removeEventListener('abort', onAbort)
}

async function outcomeOf(runtime: Runtime, jobId: string): Promise<SyncSpawnOutput> {
  const ended = await waitForOutcome(runtime, jobId)
  if (ended === null || !isTerminal(ended.state))
    throw new Error(`Job ${jobId} is gone: its row was deleted while it was waited for.`)
  return toSyncOutput(ended, ended.messages)
}

async function* growingMessage(runtime: Runtime, jobId: string): AsyncGenerator<UIMessage> {
  const frames = followAgent(runtime, jobId)
  const stream = new ReadableStream<UIMessageChunk>({
    async pull(controller) {
      const next = await frames.next()
      if (next.done === true) controller.close()
      else controller.enqueue(next.value.chunk)
    },
    async cancel() {
      await frames.return(undefined)
    },
  })
  let shownAt = -Infinity
  for await (const message of readUIMessageStream({ stream, onError: () => undefined })) {
    if (performance.now() - shownAt < PROGRESS_EVERY_MS) continue
    shownAt = performance.now()
    yield { ...message, parts: latestParts(message.parts) }
  }
}

/** The newest parts, up to 20,000 characters in all. */
function latestParts(parts: UIMessage['parts']): UIMessage['parts'] {
  let left = PROGRESS_LENGTH
  const kept: UIMessage['parts'] = []
  for (const part of parts.toReversed()) {
    if (left <= 0) break
    const text = 'text' in part && typeof part.text === 'string' ? part.text : undefined
    kept.push(text !== undefined && text.length > left ? ({ ...part, text: tailOf(text, left) } as typeof part) : part)
    left -= text?.length ?? JSON.stringify(part).length
  }
  return kept.toReversed()
}

/**
 * What a parent's model reads of a spawn: only status and result, as an error unless the child completed. A long result
 * is shown in part, with the way to the rest where the model has the tool for it.
 */
export function spawnModelOutput(output: SpawnOutput | SpawnProgress, canReadOn = true) {
  if (!('reason' in output)) {
    const { state, jobId } = output
    return { type: 'json' as const, value: { state, jobId, ...('note' in output ? { note: output.note } : {}) } }
  }
  const result = 'result' in output ? output.result : null
  const value = {
    state: output.state,
    reason: output.reason,
    result: result === null ? null : shortenedResult(output.jobId, result, canReadOn).result,
    jobId: output.jobId,
    ...(output.error === undefined ? {} : { error: output.error }),
    ...('partial' in output && output.partial ? { partial: true } : {}),
  }
  return { type: output.state === 'completed' ? ('json' as const) : ('error-json' as const), value }
}
