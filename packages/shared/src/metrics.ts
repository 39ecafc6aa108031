// The numbers of one process, in a registry of its own. What is in a job's history is counted from the lines that were
// committed, so that history and metrics cannot say different things. Labels come from closed lists, or are capped: no
// ids. docs/operations/metrics.md has each metric in words.
import { collectDefaultMetrics, Counter, Gauge, Histogram, Registry } from 'prom-client'
import { FINDINGS, type Finding, type JobFinding } from './contracts/finding.ts'
import { OUTBOX_KINDS } from './contracts/outbox.ts'
import type { Reason } from './contracts/reason.ts'
import { knownCount, type Usage } from './contracts/usage.ts'
import type { NewEvent } from './db/events.ts'

export type Metrics = ReturnType<typeof createMetrics>

/** What came of a delivery that reached a worker. */
export type DeliveryOutcome =
  | 'completed'
  | 'failed'
  | 'aborted'
  | 'waiting'
  | 'retry_later'
  | 'handed_back'
  /** The attempt was stopped, since its claim was gone. */
  | 'lost'
  /** The attempt came to an end of its own, and its claim was gone: nothing was written. */
  | 'late'
  | 'not_due'

const TELL_OUTCOMES = ['told', 'failed', 'dead'] as const
export type TellOutcome = (typeof TELL_OUTCOMES)[number]

/** Seconds: model calls, tools and queues take from milliseconds to many minutes. */
const BUCKETS = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600]
/** Models and tools with a label of their own; further ones share "other". */
const MAX_NAMES = 100

/** A registry for one process. The process itself is measured only after `watchProcess`. */
export function createMetrics() {
  const registry = new Registry()
  const make = makersOf(registry)
  return {
    registry,
    ...jobMetrics(make),
    ...repairMetrics(make),
    ...runMetrics(make),
    ...workerMetrics(make),
    /** Also measures memory, CPU, event loop and garbage collection. */
    watchProcess: () => collectDefaultMetrics({ register: registry }),
  }
}

type Makers = ReturnType<typeof makersOf>

function makersOf(registry: Registry) {
  const registers = [registry]
  return {
    counter: <L extends string>(name: string, help: string, labelNames: readonly L[] = []) =>
      new Counter({ name, help, labelNames, registers }),
    histogram: <L extends string>(name: string, help: string, labelNames: readonly L[] = []) =>
      new Histogram({ name, help, labelNames, buckets: BUCKETS, registers }),
    gauge: (name: string, help: string, read: () => number) => {
      // Who watches anew takes the place of who watched before.
      registry.removeSingleMetric(name)
      const gauge: Gauge = new Gauge({ name, help, registers, collect: () => gauge.set(read()) })
    },
  }
}

/** What happens to jobs, from their histories; and refusals, which have none. */
function jobMetrics({ counter }: Makers) {
  const events = counter('offshoot_job_events_total', 'Lines added to the histories of jobs.', ['kind'])
  const findings = counter('offshoot_reconciler_findings_total', 'What the reconciler found and repaired.', ['kind'])
  const spawns = counter('offshoot_spawns_total', 'Jobs accepted: spawns, and chat turns.', ['mode'])
  const refusals = counter('offshoot_spawn_refusals_total', 'Spawns and chat turns that were refused.', ['reason'])
  const ended = counter('offshoot_jobs_ended_total', 'Jobs that this process has ended.', ['state', 'reason'])
  // A series that begins at 0 shows its first increase.
  for (const kind of FINDINGS) findings.inc({ kind }, 0)
  return {
    /** Counts lines that stand in histories now. */
    countEvents(lines: readonly NewEvent[]): void {
      for (const { kind, finding, data } of lines) {
        events.inc({ kind })
        if (finding !== undefined) findings.inc({ kind: finding })
        if (kind === 'spawned') spawns.inc({ mode: String(data?.['mode']) })
        if (kind === 'refused') refusals.inc({ reason: String(data?.['reason']) })
        if (kind === 'ended') ended.inc({ state: String(data?.['state']), reason: String(data?.['reason']) })
      }
    },
    /** Counts a refusal that is in no history, since there is no job. */
    countRefusal: (reason: Reason) => refusals.inc({ reason }),
    /** Counts findings that are in no history. */
    countFindings: (kind: Exclude<Finding, JobFinding>, count: number) => findings.inc({ kind }, count),
  }
}

function repairMetrics({ counter }: Makers) {
  const tells = counter('offshoot_outbox_tells_total', 'Tries to tell an outbox entry.', ['kind', 'outcome'])
  for (const kind of OUTBOX_KINDS) for (const outcome of TELL_OUTCOMES) tells.inc({ kind, outcome }, 0)
  const rounds = counter('offshoot_reconciler_rounds_total', 'Rounds of the reconciler.', ['outcome'])
  return {
    countTell: (kind: string, outcome: TellOutcome) => tells.inc({ kind, outcome }),
    countRound: (outcome: 'done' | 'failed') => rounds.inc({ outcome }),
  }
}

/** What a run does: model calls and tool calls. */
function runMetrics({ counter, histogram }: Makers) {
  const calls = counter('offshoot_model_calls_total', 'Tries of model calls: answered, or the reason why not.', [
    'model',
    'outcome',
  ])
  const tokens = counter('offshoot_tokens_total', 'Tokens that models reported; output includes reasoning.', [
    'kind',
    'model',
  ])
  const output = histogram('offshoot_model_call_seconds', 'A model call, to its whole output.', ['model'])
  const firstChunk = histogram('offshoot_model_first_chunk_seconds', 'A model call, to its first output.', ['model'])
  const toolCall = histogram('offshoot_tool_seconds', 'A tool call.', ['tool', 'outcome'])
  const [modelName, toolName] = [cappedNames(), cappedNames()]
  return {
    /** What is counted of the calls of one model. */
    ofModel(name: string) {
      const model = modelName(name)
      return {
        firstOutput(seconds: number): void {
          calls.inc({ model, outcome: 'answered' })
          firstChunk.observe({ model }, seconds)
        },
        failed: (reason: Reason) => calls.inc({ model, outcome: reason }),
        wholeOutput(seconds: number, { inputTokens, outputTokens, reasoningTokens }: Usage): void {
          output.observe({ model }, seconds)
          tokens.inc({ model, kind: 'input' }, knownCount(inputTokens) ?? 0)
          tokens.inc({ model, kind: 'output' }, knownCount(outputTokens) ?? 0)
          tokens.inc({ model, kind: 'reasoning' }, knownCount(reasoningTokens) ?? 0)
        },
      }
    },
    /** `cut`: the run was stopped in the middle of the call. */
    countToolCall: (name: string, outcome: 'ok' | 'error' | 'cut', seconds: number) =>
      toolCall.observe({ tool: toolName(name), outcome }, seconds),
  }
}

export type ModelMetrics = ReturnType<ReturnType<typeof runMetrics>['ofModel']>

/** What a worker process does around its runs. */
function workerMetrics({ counter, histogram, gauge }: Makers) {
  const deliveries = counter('offshoot_deliveries_total', 'Deliveries that reached this worker.', ['outcome'])
  const spawnToClaim = histogram('offshoot_spawn_to_claim_seconds', 'A spawn, to the first claim of its job.')
  const missed = counter('offshoot_heartbeats_missed_total', 'Heartbeat intervals of this worker without an answer.')
  const frames = counter('offshoot_live_frames_total', 'Frames of live streams.', ['outcome'])
  const drains = counter('offshoot_drains_total', 'Drains of this worker.', ['outcome'])
  return {
    countDelivery: (outcome: DeliveryOutcome) => deliveries.inc({ outcome }),
    countFirstClaim: (secondsSinceSpawn: number) => spawnToClaim.observe(secondsSinceSpawn),
    countMissedHeartbeat: () => missed.inc(),
    countFrames: (outcome: 'sent' | 'dropped', count: number) => frames.inc({ outcome }, count),
    countDrain: (outcome: 'in_time' | 'forced') => drains.inc({ outcome }),
    /** Also shows how many jobs this worker runs. To be called once. */
    watchJobs: (count: () => number) => gauge('offshoot_worker_jobs', 'Jobs that this worker runs now.', count),
  }
}

/** For names that people choose: the first hundred keep theirs. */
function cappedNames(): (name: string) => string {
  const known = new Set<string>()
  return (name) => {
    if (known.size < MAX_NAMES) known.add(name)
    return known.has(name) ? name : 'other'
  }
}
