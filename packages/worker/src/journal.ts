// The journal of one attempt: a model middleware and a tool wrapper around the AI SDK's own loop.
//
// 1. Every part of the model's output is told as it comes, to be kept and shown (model-output.ts). The SDK's loop gets the
//    output as that of a model that does not stream: whole, once it is stored where it calls tools, so no tool runs before
//    its call is stored. Nothing follows from any other step but the job's end, which stores it (end-together.ts); until
//    then it is held.
// 2. A tool call's start is stored before it runs, its last value before the SDK sees its end (journaled-tool.ts).
// 3. A last step that is stored and not whole is played back: the model is not called.
// 4. Every write carries the claim, and is repeated until Postgres takes it or the run is stopped (persist.ts).
import type {
  LanguageModelV4,
  LanguageModelV4CallOptions,
  LanguageModelV4Content,
  LanguageModelV4GenerateResult,
  LanguageModelV4StreamPart,
} from '@ai-sdk/provider'
import type { LanguageModelMiddleware, Tool, ToolSet } from 'ai'
import { costMicroUsd, type ModelPrice } from '@offshoot/shared/contracts/price'
import type { Claim } from '@offshoot/shared/db/agent-jobs'
import type { Database } from '@offshoot/shared/db/database'
import { type EventKind, insertEventOnce } from '@offshoot/shared/db/events'
import { type Counters, type StoredInboxItem, type StoredStep, type StoredToolCall } from '@offshoot/shared/db/journal'
import type { Groups } from '@offshoot/shared/groups'
import type { Logger } from '@offshoot/shared/logger'
import type { MergeWindow } from '@offshoot/shared/merge-window'
import type { Metrics } from '@offshoot/shared/metrics'
import { runWithTextTap } from '@offshoot/shared/text-tap'
import type { CallMeter, CutCalls } from './cut-calls.ts'
import { journaledTool } from './journaled-tool.ts'
import { createOutputReader } from './model-output.ts'
import { callModelWithRetries } from './model-retries.ts'
import { createPersist, untilPostgresAnswers } from './persist.ts'
import { createOutputRecorder, toUsage, wholeOutput } from './recorded-output.ts'
import type { StopSwitch } from './run-stop.ts'
import { createStepStore, type StepStore } from './step-store.ts'
import { toolCallOf, withToolCall } from './tool-call-context.ts'

/** Ends that are answers, and are therefore stored. After any other the step counts as not made. */
export const STORED_FINISHES: ReadonlySet<string> = new Set(['stop', 'tool-calls', 'length', 'content-filter'])

export interface JournalOptions {
  database: Database
  groups: Pick<Groups, 'storeOutput'>
  mergeWindow: MergeWindow
  claim: Claim
  generation: number
  stopSwitch: StopSwitch
  cutCalls: CutCalls
  /** How long a model call may take to its first output, and between any two pieces of it. */
  limits: { firstChunkMs: number; chunkMs: number }
  /** `integration:modelName` */
  modelId: string
  metrics: Metrics
  logger: Logger
  price?: ModelPrice
  /** Called before each model call; what it throws fails the step. */
  beforeCall: (params: LanguageModelV4CallOptions) => Promise<void>
  /** Called before a tool runs; what it throws ends the call. */
  beforeTool: () => Promise<void>
  /** Called before a step's output is stored, so that viewers have seen it when it counts as said. */
  beforeStore: () => Promise<void>
  /** Called after it is stored, with the job's counters; null: the claim was gone. */
  onStored: (counters: Counters | null) => void
}

/** The step that runs now. */
export interface CurrentStep {
  index: number
  inbox: readonly StoredInboxItem[]
  /** Set when the step is played back. */
  playback?: { step: StoredStep; toolCalls: readonly StoredToolCall[] }
  /** Gets what the model says as it says it; of a step that is played back all of it together. */
  onSaid: (part: LanguageModelV4StreamPart) => void
  /** Gets the content of a whole output before it is stored, where it has calls. */
  onCalls: (content: readonly LanguageModelV4Content[]) => Promise<void>
  /** Gets each value of a tool that streams. */
  onToolValue: (toolCallId: string, value: unknown) => void
}

export interface Journal extends Pick<StepStore, 'held' | 'storeHeld' | 'storeWhole'> {
  begin(step: CurrentStep): void
  /** The number of the step that runs now. */
  stepIndex(): number
  middleware: LanguageModelMiddleware
  wrapTools(tools: ToolSet): ToolSet
  /** Adds a line to the job's history, once for the whole job. */
  recordOnce(kind: EventKind, data: Record<string, unknown>): Promise<void>
}

export function createJournal(options: JournalOptions): Journal {
  const { database, claim, generation, stopSwitch, metrics, logger } = options
  const persist = createPersist({ stopSwitch, logger, jobId: claim.jobId })
  const stepStore = createStepStore({ ...options, persist })
  let current: CurrentStep | undefined
  const step = (): CurrentStep => {
    if (current === undefined) throw new Error('no step has begun')
    return current
  }
  const tools = {
    database,
    claim,
    persist,
    stopSwitch,
    metrics,
    logger,
    currentStep: step,
    beforeTool: () => options.beforeTool(),
  }

  function callUnderWay(toolCallId: string) {
    const { index, playback } = step()
    return toolCallOf({ jobId: claim.jobId, index, generation: playback?.step.generation ?? generation }, toolCallId)
  }

  return {
    held: stepStore.held,
    storeHeld: stepStore.storeHeld,
    storeWhole: stepStore.storeWhole,
    begin(next) {
      current = next
    },
    stepIndex: () => step().index,
    middleware: {
      specificationVersion: 'v4',
      async wrapGenerate({ model, params }) {
        const { playback, onSaid } = step()
        if (playback === undefined) return callModel(options, { step: step(), stepStore }, model, params)
        const { modelOutput } = playback.step
        for (const part of modelOutput) onSaid(part)
        return wholeOutput(modelOutput)
      },
    },
    wrapTools: (set) =>
      Object.fromEntries(
        Object.entries(set).map(([name, tool]) => [
          name,
          // A ToolSet's values are tools; its type only spells out their combinations.
          journaledTool(tools, name, withToolCall(tool as Tool, callUnderWay)),
        ]),
      ),
    recordOnce: (kind, data) =>
      untilPostgresAnswers(() => insertEventOnce(database, { jobId: claim.jobId, kind, data }, { claim }), {
        stopSwitch,
        logger,
        jobId: claim.jobId,
      }),
  }
}

interface CalledStep {
  step: CurrentStep
  stepStore: StepStore
}

/** Calls the model. What it says is kept and shown as it comes, and stored or held once it is whole. */
async function callModel(
  options: JournalOptions,
  called: CalledStep,
  model: LanguageModelV4,
  params: LanguageModelV4CallOptions,
): Promise<LanguageModelV4GenerateResult> {
  const { claim, stopSwitch, limits, logger, mergeWindow } = options
  await options.beforeCall(params)
  const startedAt = performance.now()
  const metrics = options.metrics.ofModel(options.modelId)
  const signal = params.abortSignal ?? stopSwitch.signal
  const meter = options.cutCalls.meter(params, options.price)
  const recorder = createOutputRecorder()
  const reader = createOutputReader({
    signal,
    chunkMs: limits.chunkMs,
    onPart(part) {
      recorder.add(part)
      // Counted also when it cannot be stored: it is paid for.
      if (part.type === 'finish') metrics.wholeOutput((performance.now() - startedAt) / 1_000, toUsage(part.usage))
    },
    onSaid(part) {
      meter.received(part)
      called.step.onSaid(part)
    },
  })
  const doStream = meter.counting((abortSignal) =>
    runWithTextTap(reader.tap, () => model.doStream({ ...params, abortSignal })),
  )
  const retries = { signal, firstChunkMs: limits.firstChunkMs, metrics, logger, jobId: claim.jobId }
  const { request, response, ...source } = await callModelWithRetries(doStream, retries)
  const close = mergeWindow.open()
  try {
    await reader.read(source)
  } finally {
    close()
  }
  const parts = recorder.parts()
  const output = wholeOutput(parts)
  await keepOutput(options, { ...called, startedAt, meter }, output, parts)
  return {
    ...output,
    ...(request === undefined ? {} : { request }),
    response: { ...output.response, ...(response?.headers === undefined ? {} : { headers: response.headers }) },
  }
}

interface KeptCall extends CalledStep {
  startedAt: number
  meter: CallMeter
}

/** Stores an output where tools run next, else holds it. One that is no answer is neither. */
async function keepOutput(
  { generation, price, beforeStore }: JournalOptions,
  { step, startedAt, meter, stepStore }: KeptCall,
  { finishReason, usage: said, content }: LanguageModelV4GenerateResult,
  parts: LanguageModelV4StreamPart[],
): Promise<void> {
  if (!STORED_FINISHES.has(finishReason.unified)) return
  const usage = toUsage(said)
  const output = {
    index: step.index,
    generation,
    parts,
    usage,
    costMicroUsd: costMicroUsd(price, usage, said.inputTokens.cacheRead),
    finishReason: finishReason.unified,
    elapsedMs: performance.now() - startedAt,
    inboxSeqs: step.inbox.map((item) => item.seq),
  }
  if (!content.some(({ type }) => type === 'tool-call')) {
    meter.held()
    stepStore.hold(output)
    return
  }
  await step.onCalls(content)
  await beforeStore()
  if (await stepStore.storeOutput(output)) meter.stored()
}
