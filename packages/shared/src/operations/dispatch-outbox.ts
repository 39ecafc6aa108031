// Tells others what the outbox holds: at once for the process that wrote it, again by the reconciler for what nobody
// told in time. Everything told here is harmless when told twice. Nobody waits for a telling: an endpoint that hangs holds
// up neither a job nor a round of the reconciler.
import type { TerminalState } from '../contracts/job-state.ts'
import { type OutboxMessage, outboxMessageSchema, UndeliverableError } from '../contracts/outbox.ts'
import { type Config, hasRedis } from '../config.ts'
import type { Database } from '../db/database.ts'
import { markOutboxDone, markOutboxFailed, type OutboxEntry, takeDueOutbox } from '../db/outbox.ts'
import type { Extensions } from '../extensions.ts'
import type { Logger } from '../logger.ts'
import type { Metrics } from '../metrics.ts'
import type { DeliveryQueues } from '../queue/delivery-queue.ts'
import type { InlineQueue } from '../queue/inline-queue.ts'
import type { LiveStreams } from '../queue/live-streams.ts'
import type { Signals } from '../queue/signals.ts'
import { withLimit } from '../with-limit.ts'
import { bringOutcome } from './child-outcome.ts'
import { openCompletionEvents } from './completion-events.ts'

export interface OutboxDispatcher {
  /** Tells these entries in the background. */
  dispatch(entries: readonly OutboxEntry[]): void
  /** Begins to tell what is due, and answers how many entries that are. */
  dispatchDue(): Promise<number>
  /** Waits at most half a second for what is on its way. */
  close(): Promise<void>
}

/** What one telling gets before it counts as failed (a Redis that is away never answers). */
const TELL_LIMIT_MS = 500
/** The same for what is told to another server, or waits for locks in Postgres. */
const LONG_TELL_LIMIT_MS = 10_000
/** Done marks are written together, this long after the first of them. */
const DONE_BATCH_MS = 50
/** So many due entries may be under way in this process; so many events besides, which may take long. */
const MAX_DUE = 200
const MAX_DUE_EVENTS = 100
/** The number of a generation's end among the batches of its last attempt: behind all others. */
const LAST_BATCH = 1_000_000_000
/** 1 s, 2 s, 4 s … up to 5 minutes; after this many attempts, about half a day, an entry is a dead letter. */
const MAX_ATTEMPTS = 150
const MAX_BACK_OFF_MS = 300_000

export interface DispatchDependencies {
  config: Config
  logger: Logger
  metrics: Metrics
  database: Database
  deliveries: DeliveryQueues
  inline?: InlineQueue
  signals: Signals
  liveStreams: LiveStreams
  extensions: Extensions
}

export function openOutboxDispatcher(dependencies: DispatchDependencies): OutboxDispatcher {
  const { database, logger, metrics } = dependencies
  const completionEvents = openCompletionEvents(dependencies)
  const underway = new Set<Promise<void>>()
  const of = hasRedis(dependencies.config) ? 'all' : 'inline'
  const dueUnderway = { events: 0, 'all else': 0 }
  let done: { id: bigint; late: boolean }[] = []
  let flushTimer: NodeJS.Timeout | undefined

  async function flushDone(): Promise<void> {
    clearTimeout(flushTimer)
    flushTimer = undefined
    const told = done
    done = []
    if (told.length === 0) return
    // A mark that is not written only means that the reconciler tells the entry again.
    await markOutboxDone(database, told).then(metrics.countEvents, (error: unknown) =>
      logger.warn({ error }, 'outbox marks not written'),
    )
  }

  /** `late`: somebody else should have told it. */
  async function tell(entry: OutboxEntry, { late }: { late: boolean }): Promise<void> {
    try {
      // Each try that Redis does not answer stays in its client’s memory until it does: one an entry is enough.
      if (late && goesToRedis(entry) && !dependencies.signals.pulse.isOk()) throw new Error('Redis is away')
      await withLimit(
        tellOne({ ...dependencies, outbox: dispatcher }, completionEvents, entry, messageOf(entry, late)),
        entry.kind === 'completionEvent' || entry.kind === 'outcome' ? LONG_TELL_LIMIT_MS : TELL_LIMIT_MS,
      )
      metrics.countTell(entry.kind, 'told')
      done.push({ id: entry.id, late })
      flushTimer ??= setTimeout(() => void track(flushDone()), DONE_BATCH_MS)
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error)
      const dead = error instanceof UndeliverableError || entry.attempts + 1 >= MAX_ATTEMPTS
      const delayMs = dead ? null : Math.min(1_000 * 2 ** Math.min(entry.attempts, 16), MAX_BACK_OFF_MS)
      const about = { outboxId: String(entry.id), kind: entry.kind, jobId: entry.jobId, error: message }
      if (dead) logger.error(about, 'could not tell, and will not try again: a dead letter')
      else logger.warn(about, 'could not tell; trying again')
      metrics.countTell(entry.kind, dead ? 'dead' : 'failed')
      await markOutboxFailed(database, entry.id, message, delayMs).then(metrics.countEvents, () => undefined)
    }
  }

  function track(work: Promise<void>): Promise<void> {
    underway.add(work)
    return work.finally(() => underway.delete(work))
  }

  async function dispatchSomeDue(what: 'events' | 'all else', atMost: number): Promise<number> {
    const due = await takeDueOutbox(database, { what, limit: atMost - dueUnderway[what], of })
    dueUnderway[what] += due.length
    for (const entry of due)
      void track(tell(entry, { late: true })).finally(() => {
        dueUnderway[what] -= 1
      })
    return due.length
  }

  const dispatcher: OutboxDispatcher = {
    dispatch(entries) {
      for (const entry of entries) void track(tell(entry, { late: false }))
    },
    async dispatchDue() {
      return (await dispatchSomeDue('all else', MAX_DUE)) + (await dispatchSomeDue('events', MAX_DUE_EVENTS))
    },
    async close() {
      const limit = new Promise<void>((resolve) => setTimeout(resolve, TELL_LIMIT_MS).unref())
      await Promise.race([Promise.all(underway), limit])
      await Promise.race([flushDone(), limit])
    },
  }
  return dispatcher
}

/** Deliveries, their removals and end frames, but for inline jobs, whose queue is the process's own. */
function goesToRedis({ kind, payload }: OutboxEntry): boolean {
  const ownWorker = typeof payload === 'object' && payload !== null && 'workerId' in payload
  return (kind === 'delivery' || kind === 'removal' || kind === 'ended') && !ownWorker
}

/** What this process has just written is known; what it finds may be of another version. */
function messageOf({ kind, payload }: OutboxEntry, late: boolean): OutboxMessage {
  if (!late) return { kind, payload } as OutboxMessage
  const parsed = outboxMessageSchema.safeParse({ kind, payload })
  if (!parsed.success) throw new UndeliverableError(`the entry has another shape: ${parsed.error.message}`)
  return parsed.data
}

async function tellOne(
  dependencies: DispatchDependencies & { outbox: OutboxDispatcher },
  completionEvents: ReturnType<typeof openCompletionEvents>,
  entry: OutboxEntry,
  message: OutboxMessage,
): Promise<void> {
  const { signals, liveStreams } = dependencies
  switch (message.kind) {
    case 'delivery':
      return queueOf(dependencies, message.payload)?.add(message.payload)
    case 'removal':
      return queueOf(dependencies, message.payload)?.remove(
        message.payload.lane,
        entry.jobId,
        message.payload.deliverySeq,
      )
    case 'ended': {
      const { generation, attempt, state, error, reason, endsStep } = message.payload
      signals.publish(`job:${entry.jobId}`, 'ended')
      const endOfStep = endsStep === true ? [{ type: 'finish-step' as const }] : []
      const chunks = [...endOfStep, ...endChunks(state, error, reason)]
      await liveStreams.append(entry.jobId, { generation, attempt, number: LAST_BATCH, end: true, chunks })
      signals.publish(`live:${entry.jobId}`, 'frames')
      return
    }
    case 'outcome':
      return bringOutcome(dependencies, message.payload)
    case 'completionEvent':
      return completionEvents.send(entry.jobId, message.payload)
  }
}

/**
 * The queue of a delivery: BullMQ's, or this process's own for an inline job. Undefined: the job is in another process,
 * which finds it at its next heartbeat.
 */
function queueOf(
  { deliveries, inline }: DispatchDependencies,
  { workerId }: { workerId?: string | undefined },
): DeliveryQueues | undefined {
  if (workerId === undefined) return deliveries
  return inline?.workerId() === workerId ? inline : undefined
}

/** How a live stream ends: the AI SDK's own last chunks. */
export function endChunks(state: TerminalState, error: string | null, reason: string) {
  switch (state) {
    case 'completed':
      return [{ type: 'finish' as const, finishReason: 'stop' as const }]
    case 'failed':
      return [
        { type: 'error' as const, errorText: error ?? reason },
        { type: 'finish' as const, finishReason: 'error' as const },
      ]
    case 'aborted':
      return [
        { type: 'abort' as const, reason },
        { type: 'finish' as const, finishReason: 'other' as const },
      ]
  }
}
