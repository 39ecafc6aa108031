// Following a job's live stream from a cursor to its end. Subscribe first, then read, so that nothing falls between.
import type { UIMessageChunk } from 'ai'
import { isTerminal } from '../contracts/job-state.ts'
import type { LiveBatch } from '../contracts/live-frame.ts'
import type { AgentJob } from '../db/agent-jobs.ts'
import { sql } from '../db/database.ts'
import type { Runtime } from '../runtime.ts'
import { createWaker } from '../waker.ts'
import { endChunks } from './dispatch-outbox.ts'
import { jobReason } from '../agent-views.ts'

/** A chunk with its number in the job's live stream, which is the cursor after it. */
export interface NumberedChunk {
  seq: number
  chunk: UIMessageChunk
  /** With `start-step`: the index of the step, where the writer has told it. */
  step?: number
}

/** Batches in memory for a follower, however slowly it takes them (UX-5). */
const READ_AHEAD = 20
const LOOK_EVERY_MS = 5_000
const LOOK_EVERY_MS_WITHOUT_REDIS = 1_000

/**
 * Yields the frames after `afterSeq`, as they come, until the end frame of the job's generation; ends early when `signal` is aborted. A job
 * that has ended without an end frame (its stream expired, or Redis was emptied) ends from its row.
 */
export async function* followAgent(
  runtime: Pick<Runtime, 'database' | 'signals' | 'liveStreams' | 'logger'>,
  jobId: string,
  options: { afterSeq?: number; signal?: AbortSignal } = {},
): AsyncGenerator<NumberedChunk> {
  const { signals } = runtime
  const waker = createWaker()
  const unsubscribes = await Promise.all([
    signals.subscribe(`live:${jobId}`, waker.wake),
    signals.subscribe(`job:${jobId}`, waker.wake),
  ])
  options.signal?.addEventListener('abort', waker.wake)
  let cursor = options.afterSeq ?? 0
  try {
    while (options.signal?.aborted !== true) {
      const batches = await readBatches(runtime, jobId, cursor)
      for (const batch of batches) {
        const goesOn = await isEndBeforeRetry(runtime, jobId, batch)
        if (!goesOn) yield* numberedAfter(batch, cursor)
        cursor = Math.max(cursor, batch.firstSeq + batch.chunks.length - 1)
        if (batch.end === true && !goesOn) return
      }
      if (batches.length > 0) continue
      const end = await endFromRow(runtime, jobId)
      // The end frame may have come between the two looks.
      if (end !== undefined && (await readBatches(runtime, jobId, cursor)).length === 0) {
        for (const chunk of end) yield { seq: (cursor += 1), chunk }
        return
      }
      if (end === undefined) await waker.pause(signals.isReachable() ? LOOK_EVERY_MS : LOOK_EVERY_MS_WITHOUT_REDIS)
    }
  } finally {
    options.signal?.removeEventListener('abort', waker.wake)
    for (const unsubscribe of unsubscribes) unsubscribe()
  }
}

function numberedAfter(batch: LiveBatch, cursor: number): NumberedChunk[] {
  const { firstSeq, startsStep } = batch
  return batch.chunks
    .map((chunk, offset) => ({
      seq: firstSeq + offset,
      chunk,
      ...(chunk.type === 'start-step' && startsStep !== undefined ? { step: startsStep } : {}),
    }))
    .filter(({ seq }) => seq > cursor)
}

/** With Redis away there is nothing to read; the look goes on, and the row decides. */
async function readBatches(
  { liveStreams, signals, logger }: Pick<Runtime, 'liveStreams' | 'signals' | 'logger'>,
  jobId: string,
  cursor: number,
): Promise<LiveBatch[]> {
  if (!signals.pulse.isOk()) return []
  try {
    return await liveStreams.read(jobId, cursor, READ_AHEAD)
  } catch (error) {
    logger.warn({ jobId, error }, 'live stream not readable')
    return []
  }
}

/** The end of a generation that a retry has followed is no end to viewers. */
async function isEndBeforeRetry(
  { database, logger }: Pick<Runtime, 'database' | 'logger'>,
  jobId: string,
  { end, generation }: LiveBatch,
): Promise<boolean> {
  if (end !== true) return false
  try {
    const job = await database.agentJob.findUnique({ where: { id: jobId }, select: { generation: true } })
    return job !== null && job.generation > generation
  } catch (error) {
    logger.warn({ jobId, error }, 'Postgres did not say whether the job was retried; its end frame counts')
    return false
  }
}

async function endFromRow(
  { database }: Pick<Runtime, 'database'>,
  jobId: string,
): Promise<UIMessageChunk[] | undefined> {
  const [job] = await database.$queryRaw<(AgentJob & { endedOfLate: boolean | null })[]>(sql`
    select *, "finishedAt" > clock_timestamp() - make_interval(secs => ${END_FRAME_GRACE_MS / 1_000}) as "endedOfLate"
    from "offshoot"."AgentJob" where "id" = ${jobId}`)
  if (job === undefined) return endChunks('aborted', null, 'The job is gone: its row was deleted.')
  if (!isTerminal(job.state)) return undefined
  // The worker's process tells the end right after the commit; give it a moment before the row speaks for it.
  return job.endedOfLate === true ? undefined : endChunks(job.state, job.error, jobReason(job))
}

const END_FRAME_GRACE_MS = 3_000
