// The calls of a step that have no result after its other tools have run: spawns, which are answered by rows, and calls
// that nobody may run any more.
import type { ModelMessage, ToolSet } from 'ai'
import { z } from 'zod'
import type { OpenCall } from '@offshoot/shared/agent-message'
import { type ProgramSpawnInput, spawnInputSchema, type SpawnOutput } from '@offshoot/shared/contracts/spawn'
import { withoutEmptyOptions } from '@offshoot/shared/contracts/without-empty-options'
import { toolsOfJob } from '@offshoot/shared/db/bots'
import type { StoredStep } from '@offshoot/shared/db/journal'
import { answerSpawnCalls, type SpawnCall, type SpawningJob } from '@offshoot/shared/operations/answer-spawn-calls'
import { delegatesOfJob } from '@offshoot/shared/operations/prepare-spawn'
import { spawnModelOutput } from '@offshoot/shared/tools/spawn-agent'
import type { Journal } from './journal.ts'
import { noteFor, roundsBefore, whyRefused, withNote } from './repeated-calls.ts'
import { stopWithoutRight } from './rights.ts'
import type { Attempt } from './run-agent.ts'
import type { RunState } from './run-state.ts'

type ToolMessage = Extract<ModelMessage, { role: 'tool' }>
type ToolResult = Extract<ToolMessage['content'][number], { type: 'tool-result' }>

export type Answered = { kind: 'answered' } | { kind: 'waiting'; liveChildren: number } | { kind: 'stopped' }

/** Answers exactly the calls that have no result yet, all spawns of the step in one transaction. */
export async function answerOpenCalls(
  attempt: Attempt,
  state: RunState,
  journal: Journal,
  { step, calls }: { step: StoredStep; calls: OpenCall[] },
  tools: ToolSet,
): Promise<Answered> {
  const noCallRuns = whyNoCallRuns(step, state)
  const outputs = storedOutputs(state, step)
  const roundsOf = (call: OpenCall) => roundsBefore(state, { ...call, stepIndex: step.index })
  const whyNotRun = (call: OpenCall) => noCallRuns ?? whyRefused(call.toolName, roundsOf(call))
  const isSpawn = ({ toolName }: OpenCall) => toolName === 'spawnAgent' && 'spawnAgent' in tools
  const spawns = calls.filter((call) => isSpawn(call) && !outputs.has(call.toolCallId) && whyNotRun(call) === undefined)
  if (spawns.length > 0) {
    await stopWithoutRight(attempt)
    const answer = await answerSpawnCalls(
      attempt.runtime,
      await spawningJob(attempt, step.index),
      spawns.map(parseSpawnCall),
    )
    if (answer.kind !== 'answered') return answer
    for (const [toolCallId, output] of answer.outputs) outputs.set(toolCallId, output)
  }
  const results = calls.map((call): ToolResult => {
    const output = outputs.get(call.toolCallId)
    const base = { type: 'tool-result' as const, toolCallId: call.toolCallId, toolName: call.toolName }
    if (output === undefined) {
      const errorText = whyNotRun(call) ?? `The tool ${call.toolName} cannot be run here.`
      attempt.live.write({ type: 'tool-output-error', toolCallId: call.toolCallId, errorText })
      return { ...base, output: { type: 'error-text', value: errorText } }
    }
    state.addToolCall({
      stepIndex: step.index,
      toolCallId: call.toolCallId,
      toolName: call.toolName,
      outcome: { output },
    })
    attempt.live.write({ type: 'tool-output-available', toolCallId: call.toolCallId, output })
    const note = noteFor(call.toolName, roundsOf(call), { output })
    return { ...base, output: note === undefined ? spawnModelOutput(output) : withNote(spawnModelOutput(output), note) }
  })
  const repeated = calls.find((call) => isSpawn(call) && noteFor(call.toolName, roundsOf(call), undefined))
  if (repeated !== undefined)
    await journal.recordOnce('repeated-calls', { step: step.index, toolName: repeated.toolName })
  const messages = withResults(step.responseMessages ?? [], results)
  await journal.storeWhole(step.index, messages)
  state.answerCalls(step, messages)
  return { kind: 'answered' }
}

/** What an earlier attempt had answered: a refusal stays one, although the same spawn might be accepted now. */
function storedOutputs(state: RunState, step: StoredStep): Map<string, SpawnOutput> {
  const outputs = new Map<string, SpawnOutput>()
  for (const { stepIndex, toolCallId, toolName, outcome } of state.toolCalls) {
    if (stepIndex !== step.index || toolName !== 'spawnAgent' || outcome === undefined || !('output' in outcome))
      continue
    // Written by `answerSpawnCalls`.
    outputs.set(toolCallId, outcome.output as SpawnOutput)
  }
  return outputs
}

/** A step that ended at the output limit or in a filter has its calls cut; after the last allowed step there is nobody to read a result. */
function whyNoCallRuns(step: StoredStep, state: RunState): string | undefined {
  if (step.finishReason === 'length')
    return 'The call was not run: the model reached its output limit while writing it.'
  if (step.finishReason === 'content-filter') return 'The call was not run: the provider filtered the output.'
  if (step.index >= state.maxSteps - 1) return 'The call was not run: this was the last step allowed.'
  return undefined
}

function parseSpawnCall(call: OpenCall): SpawnCall {
  const parsed = spawnInputSchema.safeParse(withoutEmptyOptions(call.input, ['message', 'bot']))
  const input: ProgramSpawnInput | { invalid: string } = parsed.success
    ? parsed.data
    : { invalid: `Invalid input for spawnAgent: ${z.prettifyError(parsed.error)}` }
  return { toolCallId: call.toolCallId, toolName: call.toolName, input }
}

async function spawningJob({ job, claim, cutCalls, runtime, msLeft }: Attempt, step: number): Promise<SpawningJob> {
  const convo = await runtime.database.convo.findUnique({ where: { id: job.convoId }, select: { spaceId: true } })
  return {
    claim: { ...claim, cutTokens: cutCalls.tokens() },
    rootJobId: job.rootJobId,
    step,
    originOf: (toolCallId) => ({
      userId: job.ownerId,
      delegateUserIds: delegatesOfJob(job),
      depth: job.depth,
      parentConvoId: job.convoId,
      spaceId: convo?.spaceId ?? null,
      parent: {
        jobId: job.id,
        rootJobId: job.rootJobId,
        ancestorIds: job.ancestorIds,
        triggeredByIds: job.triggeredByIds,
        step,
        toolCallId,
        tools: toolsOfJob(job),
        layers: job.layers,
        grant: job.grant,
        runner: job.runner,
        deadlineMsLeft: msLeft(),
      },
    }),
  }
}

/** The results join the step's tool message, or make one. */
function withResults(messages: readonly ModelMessage[], results: ToolResult[]): ModelMessage[] {
  const last = messages.at(-1)
  if (last?.role !== 'tool') return [...messages, { role: 'tool', content: results }]
  return [...messages.slice(0, -1), { ...last, content: [...last.content, ...results] }]
}
