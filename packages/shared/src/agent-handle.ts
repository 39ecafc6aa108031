// A job in the hands of a program: what `offshoot.spawn`, `attach` and `listLive` give. A handle holds no connection and
// no copy of the job: each method asks the record, with the rights that its user has then.
import type { UIMessageChunk } from 'ai'
import type { z } from 'zod'
import { toSyncOutput } from './agent-views.ts'
import { abortInputSchema, type AbortOutput } from './contracts/abort.ts'
import { jobNotFound } from './contracts/check.ts'
import { isTerminal, type JobState, projectState } from './contracts/job-state.ts'
import { messageInputSchema, messageOptionsSchema, type MessageReceipt } from './contracts/message.ts'
import type { RefusedSpawnOutput, SyncSpawnOutput } from './contracts/spawn.ts'
import type { AgentJob } from './db/agent-jobs.ts'
import { abortAgent } from './operations/abort-agent.ts'
import { findReadableJob } from './operations/check-agent.ts'
import { endChunks } from './operations/dispatch-outbox.ts'
import { jobFrames } from './operations/job-frames.ts'
import { messageAgent } from './operations/message-agent.ts'
import type { JobReader } from './operations/readable-jobs.ts'
import { waitForOutcome } from './operations/wait-for-agent.ts'
import type { Runtime } from './runtime.ts'

/** How a job ended, or why there is none: `jobId` is empty then. */
export type AgentOutcome = SyncSpawnOutput | RefusedSpawnOutput

export interface AgentHandle {
  /** The job's id, to be kept and given to `attach`; empty when the spawn was refused. */
  readonly id: string
  status(): Promise<JobState>
  /** The job's last text, as far as it has come when it ended early; null while it runs, and where it said nothing. */
  result(): Promise<string | null>
  /** A sentence that users may read; null unless the job failed, was aborted, or the spawn was refused. */
  error(): Promise<string | null>
  /**
   * Resolves with the outcome when the job has ended, whichever way; without `timeoutMs` it waits as long as the job lives.
   * @throws AgentTimeoutError when the job has not ended within `timeoutMs`; it goes on
   */
  await(timeoutMs?: number): Promise<AgentOutcome>
  /** Aborts the job and everything below it; the answer says what is true then. */
  abort(reason?: string): Promise<AbortOutput>
  /**
   * Sends a message that the job reads before its next step. With `waitSeconds` the receipt comes when it has been read;
   * a repeat with the same `messageId` sends nothing and answers with the receipt.
   * @throws ZodError when the text is empty or longer than 100,000 characters
   */
  steer(text: string, options?: z.input<typeof messageOptionsSchema>): Promise<MessageReceipt>
  /**
   * The AI SDK's UI message chunks, from the start or after the chunk with this number, to the job's end. Where the live
   * stream is gone they are made from what is stored. Leaving the stream stops nothing.
   */
  stream(options?: { afterSeq?: number }): ReadableStream<UIMessageChunk>
}

/** A job did not end within the time of one `await`. Nothing happened to the job. */
export class AgentTimeoutError extends Error {
  override name = 'AgentTimeoutError'
  readonly jobId: string

  constructor(jobId: string, timeoutMs: number) {
    super(
      `Job ${jobId} has not ended within ${timeoutMs} ms. It goes on: await it again, look at it with status(), or end it with abort().`,
    )
    this.jobId = jobId
  }
}

/** `reader`: who holds the handle, with the rights of now. */
export function createAgentHandle(
  runtime: Runtime,
  jobId: string,
  holder: { userId: string; reader: () => Promise<JobReader> },
): AgentHandle {
  /** @throws Error when the job is gone: RETENTION_DAYS after its tree has ended, or with the right to see it */
  async function read(): Promise<AgentJob> {
    const job = await findReadableJob(runtime, await holder.reader(), jobId)
    if (job === null) throw new Error(jobNotFound(jobId).error)
    return job
  }

  return {
    id: jobId,
    status: async () => projectState(await read()),
    result: async () => (await read()).result,
    error: async () => (await read()).error,
    async await(timeoutMs) {
      await read()
      const job = await waitForOutcome(runtime, jobId, timeoutMs === undefined ? {} : { limitMs: timeoutMs })
      if (job === null) throw new Error(jobNotFound(jobId).error)
      if (!isTerminal(job.state)) throw new AgentTimeoutError(jobId, timeoutMs ?? Infinity)
      return toSyncOutput(job, job.messages)
    },
    abort: async (reason) =>
      abortAgent(runtime, await holder.reader(), abortInputSchema.parse({ jobId, reason }), holder.userId),
    async steer(text, options = {}) {
      const input = messageInputSchema.parse({ jobId, message: text })
      const { userId, reader } = holder
      return messageAgent(runtime, await reader(), input, userId, messageOptionsSchema.parse(options))
    },
    stream({ afterSeq = 0 } = {}) {
      const left = new AbortController()
      return streamOf(
        (async function* () {
          const job = await read()
          for await (const { chunk } of jobFrames(runtime, job, { afterSeq, signal: left.signal })) yield chunk
        })(),
        () => left.abort(),
      )
    },
  }
}

/** The handle of a spawn that was refused: nothing runs, and it says why. */
export function refusedHandle(refusal: RefusedSpawnOutput): AgentHandle {
  const { error, reason } = refusal
  return {
    id: '',
    status: async () => refusal.state,
    result: async () => null,
    error: async () => error,
    await: async () => refusal,
    abort: async () => ({ jobId: '', state: refusal.state, abortedDescendants: 0, error }),
    steer: async () => ({ accepted: false, reason: error }),
    stream: () => ReadableStream.from<UIMessageChunk>(endChunks('failed', error, reason)),
  }
}

function streamOf<T>(values: AsyncGenerator<T>, onCancel: () => void): ReadableStream<T> {
  return new ReadableStream<T>({
    async pull(controller) {
      const next = await values.next()
      if (next.done === true) controller.close()
      else controller.enqueue(next.value)
    },
    cancel: onCancel,
  })
}
