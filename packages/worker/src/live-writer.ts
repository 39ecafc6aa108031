// The way of frames from a run to its live stream: the first of a burst goes out at once, what follows within the
// merge window goes together. All writers of a process share one timer. A batch is sent until Redis has taken it, so
// that a text has no holes; while Redis is away what follows waits, deltas joined, up to a limit, and is tried ever less
// often. What an attempt that is over has not got rid of is given up after a while: then its end frame alone is told.
import type { UIMessageChunk } from 'ai'
import type { MergeWindow } from '@offshoot/shared/merge-window'
import type { NewBatch } from '@offshoot/shared/queue/live-streams'
import type { Runtime } from '@offshoot/shared/runtime'

/** Frames of a text that was joined within the same window come about that far apart: they are not held again. */
const NEARLY = 0.75
/** How long what could not be sent waits at the most for another try: viewers should have it before the end frame. */
const LONGEST_WAIT_MS = 250
/** How long frames may outlive their attempt. */
const LEFTOVER_LIMIT_MS = 60_000
/** What a flush waits for at the most; a Redis that is away never answers. */
const FLUSH_LIMIT_MS = 500
/** Frames kept for one job while a batch is on its way; what comes beyond that is dropped. */
const MAX_BUFFERED = 2_000

export interface LiveWriter {
  /** With `start-step` comes the index of the step. */
  write(chunk: UIMessageChunk, step?: number): void
  /**
   * Takes the end of a step out, if nothing else waits to be sent: the end of the job brings it along. True when it was
   * there.
   */
  takeEndOfStep(): boolean
  /** Takes back what an older attempt had said of the step that this one makes again. To be called before any `write`. */
  restartStep(): void
  /** Resolves when everything written so far has gone out, or after half a second. */
  flush(): Promise<void>
  /** The attempt is over. What is still to be sent is tried for another minute. */
  end(): void
}

export interface LiveAttempt {
  jobId: string
  generation: number
  attempt: number
  /** Called when a newer attempt has written. */
  onFenced: () => void
}

export interface LiveWriters {
  open(attempt: LiveAttempt): LiveWriter
}

interface WriterDependencies extends Pick<Runtime, 'liveStreams' | 'signals' | 'metrics'> {
  clock: ReturnType<typeof createClock>
  leftoverLimitMs: number
}

export function createLiveWriters(
  runtime: Pick<Runtime, 'liveStreams' | 'signals' | 'metrics' | 'extensions'>,
  { leftoverLimitMs = LEFTOVER_LIMIT_MS }: { leftoverLimitMs?: number } = {},
): LiveWriters {
  const { liveStreams, signals, metrics, extensions } = runtime
  const clock = createClock(extensions.mergeWindow)
  return { open: (attempt) => openWriter({ liveStreams, signals, metrics, clock, leftoverLimitMs }, attempt) }
}

function openWriter(
  { liveStreams, signals, metrics, clock, leftoverLimitMs }: WriterDependencies,
  { jobId, generation, attempt, onFenced }: LiveAttempt,
): LiveWriter {
  let buffer: UIMessageChunk[] = []
  /** On its way, or to be sent again. */
  let batch: NewBatch | undefined
  let underway: Promise<void> | undefined
  let sentAt = -Infinity
  let number = 0
  let afterSeq = 0
  let restartsStep = false
  const stepOf = new WeakMap<UIMessageChunk, number>()
  /** Nothing more is sent: a newer attempt writes, or this one is long over. */
  let fenced = false
  let givesUpAt = Infinity

  const isPending = () => !fenced && (underway !== undefined || batch !== undefined || buffer.length > 0)

  function send(): void {
    if (underway !== undefined || fenced) return
    batch ??= nextBatch()
    if (batch === undefined) return
    sentAt = performance.now()
    if (sentAt > givesUpAt) return close()
    underway = append(batch).finally(() => {
      underway = undefined
      clock.tell({ gotThrough: batch === undefined })
      if (isPending()) clock.schedule(sentAt, send)
    })
  }

  function close(): void {
    fenced = true
    buffer = []
    batch = undefined
  }

  function nextBatch(): NewBatch | undefined {
    if (buffer.length === 0) return undefined
    const { chunks, rest, endsStep } = cutAtStepEnd(buffer)
    buffer = rest
    number += 1
    const flags = { endsStep, restartsStep: restartsStep && number === 1 }
    return { generation, attempt, number, chunks, ...flags, ...beginningIn(chunks, stepOf) }
  }

  async function append(sent: NewBatch): Promise<void> {
    if (!signals.pulse.isOk()) return
    try {
      const last = await liveStreams.append(jobId, { ...sent, afterSeq })
      batch = undefined
      if (last === false) {
        close()
        onFenced()
        return
      }
      afterSeq = last
      metrics.countFrames('sent', sent.chunks.length)
      signals.publish(`live:${jobId}`, 'frames')
    } catch {
      // Redis went away in between, or refuses writes: the batch is sent again, and taken once.
    }
  }

  return {
    write(chunk, step) {
      if (fenced) return
      if (buffer.length >= MAX_BUFFERED) return metrics.countFrames('dropped', 1)
      if (step !== undefined) stepOf.set(chunk, step)
      if (!joinDelta(buffer, chunk)) buffer.push(chunk)
      // A beginning and an end of nothing go with what comes next, or with a flush.
      if (chunk.type === 'start' || chunk.type === 'finish-step') return
      if (performance.now() - sentAt < clock.waitMs() * NEARLY) clock.schedule(sentAt, send)
      else clock.soon(send)
    },
    takeEndOfStep() {
      const [only, more] = buffer
      if (only?.type !== 'finish-step' || more !== undefined || batch !== undefined) return false
      buffer = []
      return true
    },
    restartStep() {
      restartsStep = true
    },
    async flush() {
      await withinLimit(async () => {
        while (isPending()) {
          if (!signals.pulse.isOk()) return
          send()
          await underway
          // Redis refuses it: not now, then.
          if (batch !== undefined) return
        }
      })
    },
    end() {
      givesUpAt = performance.now() + leftoverLimitMs
    },
  }
}

/** A batch ends where a step ends, so that a step can be taken back as a whole. */
function cutAtStepEnd(buffer: UIMessageChunk[]) {
  const end = buffer.findIndex((chunk) => chunk.type === 'finish-step')
  return end === -1
    ? { chunks: buffer, rest: [], endsStep: false }
    : { chunks: buffer.slice(0, end + 1), rest: buffer.slice(end + 1), endsStep: true }
}

/** Waits for work at most as long as a flush may. */
async function withinLimit(work: () => Promise<void>): Promise<void> {
  let limit: NodeJS.Timeout | undefined
  await Promise.race([work(), new Promise((resolve) => (limit = setTimeout(resolve, FLUSH_LIMIT_MS)))])
  clearTimeout(limit)
}

/** When the writers of a process send. It is less and less often while nothing gets through. */
function createClock(window: MergeWindow) {
  const next = new Set<() => void>()
  const scheduled = new Set<() => void>()
  let backOffMs = 0
  const waitMs = () => Math.max(window.ms(), backOffMs)
  return {
    waitMs,
    tell({ gotThrough }: { gotThrough: boolean }): void {
      backOffMs = gotThrough ? 0 : Math.min(waitMs() * 2, LONGEST_WAIT_MS)
    },
    /** At the end of this turn of the event loop, so that what comes in it goes along. */
    soon(send: () => void): void {
      next.add(send)
      if (next.size === 1) setImmediate(() => callAll(next))
    },
    schedule(sinceMs: number, send: () => void): void {
      if (scheduled.has(send)) return
      scheduled.add(send)
      window.schedule(sinceMs + waitMs(), () => {
        scheduled.delete(send)
        send()
      })
    },
  }
}

function callAll(calls: Set<() => void>): void {
  const due = [...calls]
  calls.clear()
  for (const each of due) each()
}

/** The step that begins in a batch: at most one, since a batch ends where a step ends. */
function beginningIn(
  chunks: readonly UIMessageChunk[],
  stepOf: WeakMap<UIMessageChunk, number>,
): { startsStep?: number } {
  const startsStep = chunks.map((chunk) => stepOf.get(chunk)).find((step) => step !== undefined)
  return startsStep === undefined ? {} : { startsStep }
}

/** Joins a delta with the one of the same text before it in the batch. */
function joinDelta(buffer: UIMessageChunk[], chunk: UIMessageChunk): boolean {
  const last = buffer.at(-1)
  if (chunk.type === 'tool-input-delta') {
    if (last?.type !== chunk.type || last.toolCallId !== chunk.toolCallId) return false
    buffer[buffer.length - 1] = { ...last, inputTextDelta: last.inputTextDelta + chunk.inputTextDelta }
    return true
  }
  if (chunk.type !== 'text-delta' && chunk.type !== 'reasoning-delta') return false
  if (last?.type !== chunk.type || last.id !== chunk.id || chunk.providerMetadata !== undefined) return false
  buffer[buffer.length - 1] = { ...last, delta: last.delta + chunk.delta }
  return true
}
