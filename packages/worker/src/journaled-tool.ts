// The tool wrapper of the journal: a call's start is stored before the tool runs, its last value before the SDK sees its
// end. In a step that is played back a finished call answers from its row, and one that had started and not finished is
// decided by its tool's `onCrash`. What is too long goes on in part from here, to the journal, the model and viewers alike,
// and whole into the same write (limited-result.ts).
import type { Tool } from 'ai'
import { withoutSecrets } from '@offshoot/shared/contracts/secrets'
import { READ_RESULT } from '@offshoot/shared/contracts/truncated-result'
import type { Claim } from '@offshoot/shared/db/agent-jobs'
import type { Database } from '@offshoot/shared/db/database'
import { storeToolEnd, storeToolStart } from '@offshoot/shared/db/journal'
import type { Metrics } from '@offshoot/shared/metrics'
import { findAiTool } from '@offshoot/shared/tools/registry'
import type { CurrentStep } from './journal.ts'
import { type KeptResult, limitedModelOutput, limitError, limitPreliminary, limitResult } from './limited-result.ts'
import { untilAborted, whenLate } from './pause.ts'
import type { Persist } from './persist.ts'
import type { Logger } from '@offshoot/shared/logger'
import type { StopSwitch } from './run-stop.ts'
import { isAsyncIterable } from './tool-call-context.ts'

export interface ToolJournal {
  database: Database
  claim: Claim
  persist: Persist
  stopSwitch: StopSwitch
  metrics: Metrics
  logger: Logger
  currentStep(): CurrentStep
  /** Called before a tool runs, and before its start is stored; what it throws ends the call. */
  beforeTool(): Promise<void>
}

type CallOptions = Parameters<NonNullable<Tool['execute']>>[1]

interface CallKey {
  stepIndex: number
  toolCallId: string
  toolName: string
}

/** Our own tools that only look, or whose effect is the same the second time. */
const RETRIED_TOOLS = new Set(['checkAgent', 'abortAgent', 'listAgents', READ_RESULT])

export function journaledTool(journal: ToolJournal, name: string, tool: Tool): Tool {
  const inner = tool.execute
  if (inner === undefined) return tool
  const { database, claim, persist, stopSwitch, metrics } = journal

  async function execute(input: unknown, call: CallOptions): Promise<unknown> {
    const { index, playback, onToolValue } = journal.currentStep()
    const key: CallKey = { stepIndex: index, toolCallId: call.toolCallId, toolName: name }
    const earlier = playback?.toolCalls.find((each) => each.stepIndex === index && each.toolCallId === call.toolCallId)
    if (earlier?.outcome !== undefined) {
      if ('error' in earlier.outcome) throw earlier.outcome.error
      return earlier.outcome.output
    }
    await journal.beforeTool()
    if (earlier === undefined) await persist(() => storeToolStart(database.direct, claim, key))
    else await decideCutCall(journal, key)
    stopSwitch.signal.throwIfAborted()
    let last: unknown
    let kept: KeptResult
    // The SDK's tool timeout and an abort reach the tool as a signal; one that ignores it must not hold the run.
    const signal = call.abortSignal ?? stopSwitch.signal
    const startedAt = performance.now()
    const count = (outcome: 'ok' | 'error') =>
      metrics.countToolCall(name, stopSwitch.signal.aborted ? 'cut' : outcome, (performance.now() - startedAt) / 1_000)
    const noteLate = () =>
      journal.logger.info({ jobId: claim.jobId, ...key }, 'the result of a tool came after its end; it is dropped')
    try {
      const result: unknown = inner?.(input, call)
      if (isAsyncIterable(result)) {
        for await (const value of valuesUntilAborted(result, signal, noteLate)) {
          last = value
          onToolValue(call.toolCallId, limitPreliminary(name, value))
        }
      } else {
        const work = Promise.resolve(result)
        whenLate(work, signal, noteLate)
        last = await untilAborted(work, signal)
      }
      kept = await untilAborted(limitResult(name, tool, { toolCallId: call.toolCallId, input }, last), signal)
      count('ok')
    } catch (error) {
      count('error')
      const { value, ...whole } = limitError(name, scrubbed(error))
      // A failure after the run was stopped is the stop's own doing: the call counts as cut.
      if (!stopSwitch.signal.aborted)
        await persist(() => storeToolEnd(database.direct, claim, { ...key, outcome: { error: value }, ...whole }))
      throw value
    }
    // So does a result that comes too late.
    stopSwitch.signal.throwIfAborted()
    const { value: output, ...whole } = kept
    await persist(() => storeToolEnd(database.direct, claim, { ...key, outcome: { output }, ...whole }))
    return output
  }

  return Object.assign({ ...tool }, { execute, toModelOutput: limitedModelOutput(name, tool) })
}

/** A tool's error reaches the model and users by its message. One that holds a secret is replaced, causes and all. */
function scrubbed(error: unknown): unknown {
  const { name, message } = error instanceof Error ? error : { name: 'Error', message: String(error) }
  const shown = withoutSecrets(message)
  return shown === message ? error : Object.assign(new Error(shown), { name })
}

/** A call that had started when its worker was lost. Returns when it shall run again, throws what the model is told. */
async function decideCutCall({ database, claim, persist, stopSwitch }: ToolJournal, key: CallKey): Promise<void> {
  const { toolName } = key
  const onCrash = findAiTool(toolName)?.onCrash ?? (RETRIED_TOOLS.has(toolName) ? 'retry' : 'report')
  if (onCrash === 'retry') return
  const error = new Error(
    `The outcome of this call of ${toolName} is unknown: the process that ran it was lost. It may have taken effect. Check before you call it again.`,
  )
  await persist(() => storeToolEnd(database.direct, claim, { ...key, outcome: { error } }))
  if (onCrash === 'fail') stopSwitch.stop({ kind: 'call-unknown', toolName })
  throw error
}

async function* valuesUntilAborted(
  values: AsyncIterable<unknown>,
  signal: AbortSignal,
  noteLate: () => void,
): AsyncGenerator {
  const iterator = values[Symbol.asyncIterator]()
  try {
    for (;;) {
      const work = iterator.next()
      whenLate(work, signal, ({ done }) => done !== true && noteLate())
      const next = await untilAborted(work, signal)
      if (next.done === true) return
      yield next.value
    }
  } finally {
    // Not waited for: a generator that hangs never returns.
    void Promise.resolve(iterator.return?.()).catch(() => undefined)
  }
}
