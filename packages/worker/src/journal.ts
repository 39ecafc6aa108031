// The journal of one attempt: a model middleware and a tool wrapper around the AI SDK's own loop.
//
// 1. Every part of the model's output goes through in its order, deltas of one text joined (merged-parts.ts), but for the
//    `finish` of a step that calls tools, which is held back until the whole output is stored. This version of the SDK starts
//    tools at `finish`, so no tool runs before its call is stored. Nothing follows from any other step but the job's end,
//    which stores it (end-together.ts); until then it is held.
// 2. A tool call's start is stored before it runs, its last value before the SDK sees its end (journaled-tool.ts).
// 3. A last step that is stored and not whole is played back: the model is not called.
// 4. Every write carries the claim, and is repeated until Postgres takes it or the run is stopped (persist.ts).
import type { LanguageModelV4CallOptions, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import type { LanguageModelMiddleware, Tool, ToolSet } from 'ai'
import { costMicroUsd, type ModelPrice } from '@offshoot/shared/contracts/price'
import type { Claim } from '@offshoot/shared/db/agent-jobs'
import type { Database } from '@offshoot/shared/db/database'
import { type EventKind, insertEventOnce } from '@offshoot/shared/db/events'
import { type Counters, type StoredInboxItem, type StoredStep, type StoredToolCall } from '@offshoot/shared/db/journal'
import type { Groups } from '@offshoot/shared/groups'
import type { Logger } from '@offshoot/shared/logger'
import type { MergeWindow } from '@offshoot/shared/merge-window'
import type { Metrics, ModelMetrics } from '@offshoot/shared/metrics'
import type { CallMeter, CutCalls } from './cut-calls.ts'
import { journaledTool } from './journaled-tool.ts'
import { mergedParts } from './merged-parts.ts'
import { type BegunCall, callModelWithRetries } from './model-retries.ts'
import { createPersist, untilPostgresAnswers } from './persist.ts'
import { createOutputRecorder, streamOf, toUsage } from './recorded-output.ts'
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
}

export interface Journal extends Pick<StepStore, 'held' | 'storeHeld' | 'storeWhole'> {
  begin(step: CurrentStep): void
  /** The number of the step that runs now. */
  stepIndex(): number
  middleware: LanguageModelMiddleware
  wrapTools(tools: ToolSet): ToolSet
  /** Adds a line to the job's history, once for the whole job. */
  recordOnce(kind: EventKind, data: Record<string, unknown>): Promise<void>
  /** True when the call streams values, which viewers should see. */
  streams(toolCallId: string): boolean
}

export function createJournal(options: JournalOptions): Journal {
  const { database, claim, generation, stopSwitch, metrics, logger, cutCalls } = options
  const modelMetrics = metrics.ofModel(options.modelId)
  const persist = createPersist({ stopSwitch, logger, jobId: claim.jobId })
  const stepStore = createStepStore({ ...options, persist })
  const streaming = new Set<string>()
  let current: CurrentStep = { index: 0, inbox: [] }
  const tools = {
    database,
    claim,
    persist,
    stopSwitch,
    metrics,
    logger,
    currentStep: () => current,
    beforeTool: () => options.beforeTool(),
    onStreaming: (toolCallId: string) => void streaming.add(toolCallId),
  }

  function callUnderWay(toolCallId: string) {
    const { index, playback } = current
    return toolCallOf({ jobId: claim.jobId, index, generation: playback?.step.generation ?? generation }, toolCallId)
  }

  return {
    held: stepStore.held,
    storeHeld: stepStore.storeHeld,
    storeWhole: stepStore.storeWhole,
    begin(step) {
      current = step
    },
    stepIndex: () => current.index,
    middleware: {
      specificationVersion: 'v4',
      async wrapStream({ model, params }) {
        const step = current
        if (step.playback !== undefined) return { stream: streamOf(step.playback.step.modelOutput) }
        await options.beforeCall(params)
        const startedAt = performance.now()
        const meter = cutCalls.meter(params, options.price)
        const doStream = meter.counting((abortSignal) => model.doStream({ ...params, abortSignal }))
        const { begun, rest, ...result } = await callModelWithRetries(doStream, {
          signal: params.abortSignal ?? stopSwitch.signal,
          firstChunkMs: options.limits.firstChunkMs,
          metrics: modelMetrics,
          logger,
          jobId: claim.jobId,
        })
        const call = { step, startedAt, meter, modelMetrics, stepStore }
        return { ...result, stream: recordOutput(options, call, { begun, rest }) }
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
    streams: (toolCallId) => streaming.has(toolCallId),
  }
}

interface RecordedCall {
  step: CurrentStep
  startedAt: number
  meter: CallMeter
  modelMetrics: ModelMetrics
  stepStore: StepStore
}

/** Lets parts through, deltas joined. The whole output is stored before its `finish` where tools run then, else held. */
function recordOutput(
  { generation, price, limits, mergeWindow, beforeStore }: JournalOptions,
  { step, startedAt, meter, modelMetrics, stepStore }: RecordedCall,
  source: Pick<BegunCall, 'begun' | 'rest'>,
): ReadableStream<LanguageModelV4StreamPart> {
  const recorder = createOutputRecorder()

  function record(part: LanguageModelV4StreamPart): void {
    recorder.add(part)
    // Counted also when it cannot be stored: it is paid for.
    if (part.type === 'finish') modelMetrics.wholeOutput((performance.now() - startedAt) / 1_000, toUsage(part.usage))
    meter.received(part)
  }

  async function keepAtFinish(part: LanguageModelV4StreamPart): Promise<void> {
    record(part)
    if (part.type !== 'finish' || recorder.hasError() || !STORED_FINISHES.has(part.finishReason.unified)) return
    const usage = toUsage(part.usage)
    const output = {
      index: step.index,
      generation,
      parts: recorder.parts(),
      usage,
      costMicroUsd: costMicroUsd(price, usage, part.usage.inputTokens.cacheRead),
      finishReason: part.finishReason.unified,
      elapsedMs: performance.now() - startedAt,
      inboxSeqs: step.inbox.map((item) => item.seq),
    }
    if (!output.parts.some(({ type }) => type === 'tool-call')) {
      meter.held()
      stepStore.hold(output)
      return
    }
    await beforeStore()
    if (await stepStore.storeOutput(output)) meter.stored()
  }

  return mergedParts(source, { window: mergeWindow, chunkMs: limits.chunkMs, onDelta: record, onPart: keepAtFinish })
}
