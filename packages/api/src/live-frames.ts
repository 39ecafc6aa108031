// What a viewer of a job sees, whenever it comes: the live stream from its cursor, or, when that is gone, a snapshot of
// the stored messages. It begins with a `start` chunk and ends with the job's end.
import type { Runtime } from '@offshoot/shared/runtime'
import { agentMessageParts } from '@offshoot/shared/agent-message'
import { loadSteps, loadToolCalls } from '@offshoot/shared/db/journal'
import { followAgent } from '@offshoot/shared/operations/follow-agent'
import type { UIMessage, UIMessageChunk } from 'ai'

export interface Frame {
  /** The cursor after this frame; absent where the frame is not part of the live stream. */
  seq?: number
  chunk: UIMessageChunk
}

type FramesRuntime = Pick<Runtime, 'database' | 'signals' | 'liveStreams' | 'logger'>
type FollowedJob = { id: string; convoId: string; inputSeq: number }

/**
 * A viewer that comes with a cursor goes on from there. One that comes without, to a stream whose beginning is gone, gets
 * the stored steps first, and live frames from the next step that it sees whole; at the job's end what is still missing.
 */
export async function* jobFrames(
  runtime: FramesRuntime,
  job: FollowedJob,
  options: { afterSeq: number; signal: AbortSignal },
): AsyncGenerator<Frame> {
  const afterSeq = await usableCursor(runtime, job.id, options.afterSeq)
  let inStep: 'live' | 'unknown' | undefined = afterSeq === 0 ? undefined : 'live'
  let shownSteps = 0
  for await (const frame of followAgent(runtime, job.id, { ...options, afterSeq })) {
    const { type } = frame.chunk
    if (inStep === undefined) {
      inStep = type === 'start' ? 'live' : 'unknown'
      if (inStep === 'unknown') yield { chunk: { type: 'start', messageId: job.id } }
    }
    if (inStep === 'unknown') {
      const ends = type === 'finish' || type === 'error' || type === 'abort'
      if (type !== 'start-step' && !ends) continue
      const parts = await storedParts(runtime, job.id, shownSteps)
      shownSteps += parts.filter((part) => part.type === 'step-start').length
      for (const chunk of snapshotChunks(parts)) yield { chunk }
      inStep = 'live'
    }
    yield frame
  }
}

/** What the steps from `fromStep` on have said, as far as it is stored. */
async function storedParts({ database }: FramesRuntime, jobId: string, fromStep: number): Promise<UIMessage['parts']> {
  const [steps, toolCalls] = await Promise.all([loadSteps(database, jobId), loadToolCalls(database, jobId)])
  return agentMessageParts(steps.slice(fromStep), toolCalls)
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

/** The chunks that build these parts. */
export function* snapshotChunks(parts: UIMessage['parts']): Generator<UIMessageChunk> {
  let stepOpen = false
  for (const [index, part] of parts.entries()) {
    const id = `snapshot-${index}`
    switch (part.type) {
      case 'step-start':
        if (stepOpen) yield { type: 'finish-step' }
        stepOpen = true
        yield { type: 'start-step' }
        break
      case 'text':
        yield { type: 'text-start', id }
        yield { type: 'text-delta', id, delta: part.text }
        yield { type: 'text-end', id }
        break
      case 'reasoning':
        yield { type: 'reasoning-start', id }
        yield { type: 'reasoning-delta', id, delta: part.text }
        yield { type: 'reasoning-end', id }
        break
      case 'file':
        yield { type: 'file', url: part.url, mediaType: part.mediaType }
        break
      default:
        if ('toolCallId' in part) yield* toolChunks(part)
    }
  }
  if (stepOpen) yield { type: 'finish-step' }
}

function* toolChunks(part: Extract<UIMessage['parts'][number], { toolCallId: string }>): Generator<UIMessageChunk> {
  const toolName = part.type === 'dynamic-tool' ? part.toolName : part.type.slice('tool-'.length)
  yield { type: 'tool-input-available', toolCallId: part.toolCallId, toolName, input: part.input ?? null }
  if (part.state === 'output-available')
    yield { type: 'tool-output-available', toolCallId: part.toolCallId, output: part.output }
  if (part.state === 'output-error')
    yield { type: 'tool-output-error', toolCallId: part.toolCallId, errorText: part.errorText }
}
