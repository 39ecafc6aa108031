// What a viewer of a job sees, whenever it comes: the live stream from its cursor, and from the stored messages what is
// missing of it. It begins with a `start` chunk and ends with the job's end.
import type { Runtime } from '../runtime.ts'
import { agentMessageParts, cutMessageParts } from '../agent-message.ts'
import { loadSteps, loadToolCalls } from '../db/journal.ts'
import { decodeStored } from '../db/stored-value.ts'
import { followAgent } from './follow-agent.ts'
import type { UIMessage, UIMessageChunk } from 'ai'
import { createSeenMessage, type SeenMessage } from './seen-message.ts'

export interface Frame {
  /** The cursor after this frame; absent where the frame is not part of the live stream. */
  seq?: number
  chunk: UIMessageChunk
}

type FramesRuntime = Pick<Runtime, 'database' | 'signals' | 'liveStreams' | 'logger'>
/**
 * A viewer that comes with a cursor goes on from there. Where frames are gone (a stream keeps only so many, Redis was
 * emptied, the viewer read too slowly), it gets at the next beginning of a step, or at the job's end, what is stored and
 * it has not seen; live frames go on from there. One whose cursor says nothing of what it has seen begins anew then.
 */
export async function* jobFrames(
  runtime: FramesRuntime,
  job: { id: string },
  options: { afterSeq: number; signal: AbortSignal },
): AsyncGenerator<Frame> {
  const afterSeq = await usableCursor(runtime, job.id, options.afterSeq)
  let last = afterSeq
  let lacks = false
  /** Absent while the viewer has begun before and nobody knows what it has seen. */
  let seen: SeenMessage | undefined
  let begun = afterSeq > 0
  for await (const { seq, chunk, step } of followAgent(runtime, job.id, { ...options, afterSeq })) {
    lacks ||= seq > last + 1 || (!begun && chunk.type !== 'start')
    last = seq
    if (lacks && seen === undefined) yield { chunk: { type: 'start', messageId: job.id } }
    if (lacks || !begun) seen ??= createSeenMessage()
    begun = true
    if (lacks) {
      const parts = await partsBefore(runtime, job.id, chunk, step)
      if (parts === undefined) {
        if (chunk.type === 'data-attempt') yield { seq, chunk }
        continue
      }
      for (const missed of seen?.missing(parts) ?? []) yield { chunk: missed }
      lacks = false
    }
    seen?.note(chunk, step)
    yield { seq, chunk }
  }
}

/** What is stored of the message up to this frame; undefined in the middle of a step, which is not stored yet. */
async function partsBefore(
  { database }: FramesRuntime,
  jobId: string,
  chunk: UIMessageChunk,
  step: number | undefined,
): Promise<UIMessage['parts'] | undefined> {
  const ends = chunk.type === 'finish' || chunk.type === 'error' || chunk.type === 'abort'
  if (chunk.type !== 'start-step' && !ends) return undefined
  if (ends) {
    // Row first, then the end frame. The message has what a step that was cut had said, too.
    const message = await database.aiMessage.findUnique({ where: { id: jobId }, select: { parts: true } })
    if (message !== null) return decodeStored(message.parts) as UIMessage['parts']
  }
  const [steps, toolCalls] = await Promise.all([loadSteps(database, jobId), loadToolCalls(database, jobId)])
  return ends ? cutMessageParts(steps, toolCalls) : agentMessageParts(steps.slice(0, step), toolCalls)
}

/** A cursor that this stream cannot have given (it expired, it is from the future) counts as none: everything comes again. */
async function usableCursor(
  { liveStreams, signals, logger }: FramesRuntime,
  jobId: string,
  afterSeq: number,
): Promise<number> {
  if (afterSeq === 0 || !signals.pulse.isOk()) return afterSeq
  try {
    return (await liveStreams.read(jobId, afterSeq - 1, 1)).length > 0 ? afterSeq : 0
  } catch (error) {
    logger.warn({ jobId, error }, 'live stream not readable')
    return afterSeq
  }
}
