// A model that makes the same call in one step after the other and gets the same result each time goes round in circles, at
// the price of a model call a round. From the third time on it is told so with the result; the sixth is not run. Counted
// from the steps of all attempts, so a crash forgives nothing. Several such calls in one step are one round: that is how a
// model asks for three opinions.
import type { ToolResultPart, Tool, ToolSet } from 'ai'
import { canonicalJson } from '@offshoot/shared/contracts/canonical-json'
import type { StoredStep, StoredToolCall } from '@offshoot/shared/db/journal'
import { encodeStored } from '@offshoot/shared/db/stored-value'
import { findAiTool } from '@offshoot/shared/tools/registry'
import { isAsyncIterable } from './tool-call-context.ts'

type ModelOutput = ToolResultPart['output']

/** Twice is a second look; three times the same answer is none. */
const NOTED_AT = 3
/** After three notes. A job of 25 steps, which is the default, still has most of them. */
const REFUSED_AT = 6

/** They are there to be asked again; checkAgent says itself when nothing has changed. */
const MAY_REPEAT = new Set(['checkAgent', 'listAgents'])

export interface Call {
  stepIndex: number
  toolName: string
  input: unknown
}

export interface Rounds {
  /** In a row, up to the step of this call and without it; at most five. */
  count: number
  /** What came of them; absent where that does not count. */
  outcome?: string
}

interface Stored {
  steps: readonly StoredStep[]
  toolCalls: readonly StoredToolCall[]
}

/** A call that was repeated too often and not run, or a tool's own error (`cause`) that was repeated. */
class RepeatedCallError extends Error {
  override name = 'RepeatedCallError'
}

/** How often the same call was made in the steps before it, with the same outcome each time. */
export function roundsBefore({ steps, toolCalls }: Stored, { stepIndex, toolName, input }: Call): Rounds {
  const rounds: Rounds = { count: 0 }
  if (MAY_REPEAT.has(toolName) || findAiTool(toolName)?.mayRepeat === true) return rounds
  const wanted = keyOf(input)
  for (let index = stepIndex - 1; rounds.count < REFUSED_AT - 1; index -= 1) {
    const step = steps.findLast((each) => each.index === index)
    const same = callsOf(step).find((call) => call.toolName === toolName && keyOf(call.input) === wanted)
    if (same === undefined) break
    const stored = toolCalls.find((call) => call.stepIndex === index && call.toolCallId === same.toolCallId)
    const outcome = outcomeKey(toolName, stored?.outcome)
    if (outcome !== undefined && rounds.outcome !== undefined && outcome !== rounds.outcome) break
    if (outcome !== undefined) rounds.outcome = outcome
    rounds.count += 1
  }
  return rounds
}

/** What the model is told instead of a result; undefined: the call may run. */
export function whyRefused(toolName: string, rounds: Rounds): string | undefined {
  if (rounds.count + 1 < REFUSED_AT) return undefined
  return `The call was not run: you have made this same call of ${toolName} ${rounds.count} times in a row. Do something else, or answer with what you have.`
}

/** What is added to the result; undefined: nothing. */
export function noteFor(toolName: string, rounds: Rounds, outcome: StoredToolCall['outcome']): string | undefined {
  if (rounds.count + 1 < NOTED_AT) return undefined
  const key = outcomeKey(toolName, outcome)
  if (key !== undefined && key !== rounds.outcome) return undefined
  const result = key === undefined ? '' : ' and got the same result'
  return `You have called ${toolName} ${rounds.count + 1} times in a row with the same input${result}. Do not repeat it: use what you have, do something else, or answer.`
}

export function withNote(output: ModelOutput, note: string): ModelOutput {
  switch (output.type) {
    case 'text':
    case 'error-text':
      return { ...output, value: `${output.value}\n\n${note}` }
    case 'json':
      return { type: 'text', value: `${JSON.stringify(output.value)}\n\n${note}` }
    case 'error-json':
      return { type: 'error-text', value: `${JSON.stringify(output.value)}\n\n${note}` }
    case 'content':
      return { ...output, value: [...output.value, { type: 'text', text: note }] }
    case 'execution-denied':
      return output
  }
}

export interface RepeatWatch {
  stored: Stored
  stepIndex(): number
  /** Called at each call that is noted or refused. */
  onRepeat(call: Call): Promise<void>
}

/** The tools, which see to it that their repeated calls are noted and refused. */
export function watchRepeats(tools: ToolSet, watch: RepeatWatch): ToolSet {
  return Object.fromEntries(
    // A ToolSet's values are tools; its type only spells out their combinations.
    Object.entries(tools).map(([name, tool]) => [name, watchedTool(name, tool as Tool, watch)]),
  )
}

function watchedTool(toolName: string, tool: Tool, watch: RepeatWatch): Tool {
  const inner = tool.execute
  if (inner === undefined) return tool
  const callNow = (input: unknown): Call => ({ stepIndex: watch.stepIndex(), toolName, input })

  async function refuse(call: Call, why: string): Promise<never> {
    await watch.onRepeat(call)
    throw new RepeatedCallError(why)
  }

  async function noteError(call: Call, error: unknown): Promise<never> {
    const note = noteFor(toolName, roundsBefore(watch.stored, call), { error })
    if (note === undefined) throw error
    await watch.onRepeat(call)
    const message = error instanceof Error ? error.message : String(error)
    throw new RepeatedCallError(`${message}\n\n${note}`, { cause: error })
  }

  const execute: typeof inner = (input: unknown, options) => {
    const call = callNow(input)
    const why = whyRefused(toolName, roundsBefore(watch.stored, call))
    if (why !== undefined) return refuse(call, why)
    const result: unknown = inner(input, options)
    const fail = (error: unknown) => noteError(call, error)
    return isAsyncIterable(result) ? valuesOr(result, fail) : Promise.resolve(result).catch(fail)
  }
  const toModelOutput: NonNullable<Tool['toModelOutput']> = async ({ toolCallId, input, output }) => {
    const plain = await plainModelOutput(tool, { toolCallId, input, output })
    const call = callNow(input)
    const note = noteFor(toolName, roundsBefore(watch.stored, call), { output })
    if (note === undefined) return plain
    await watch.onRepeat(call)
    return withNote(plain, note)
  }
  return Object.assign({ ...tool }, { execute, toModelOutput })
}

async function* valuesOr(values: AsyncIterable<unknown>, fail: (error: unknown) => Promise<never>): AsyncGenerator {
  try {
    yield* values
  } catch (error) {
    await fail(error)
  }
}

/** As the SDK does it for a tool that does not say. */
function plainModelOutput(tool: Tool, call: { toolCallId: string; input: unknown; output: unknown }) {
  if (tool.toModelOutput !== undefined) return tool.toModelOutput(call)
  const { output } = call
  if (typeof output === 'string') return { type: 'text' as const, value: output }
  return { type: 'json' as const, value: JSON.parse(JSON.stringify(output) ?? 'null') }
}

/** Of a spawn every outcome is another one, if only by its job's id; one that was not run has none. */
function outcomeKey(toolName: string, outcome: StoredToolCall['outcome']): string | undefined {
  if (outcome === undefined || toolName === 'spawnAgent') return undefined
  if ('output' in outcome) return keyOf(outcome.output)
  const { error } = outcome
  if (!(error instanceof Error) || error.name !== 'RepeatedCallError') return keyOf({ error })
  return error.cause === undefined ? undefined : keyOf({ error: error.cause })
}

/** The same for a value in memory and for one from storage. */
function keyOf(value: unknown): string {
  return canonicalJson(encodeStored(value) ?? null)
}

function callsOf(step: StoredStep | undefined): { toolCallId: string; toolName: string; input: unknown }[] {
  return (step?.responseMessages ?? []).flatMap((message) =>
    message.role === 'assistant' && typeof message.content !== 'string'
      ? message.content.flatMap((part) => (part.type === 'tool-call' ? [part] : []))
      : [],
  )
}
