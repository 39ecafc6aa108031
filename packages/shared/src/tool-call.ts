// Which call of a tool is running: Offshoot sets it around `execute` in a worker.
import { AsyncLocalStorage } from 'node:async_hooks'

export interface ToolCall {
  jobId: string
  /** The step of the job that made the call; the first one is 0. */
  step: number
  /** As the model wrote it; endpoints use the same id again in other steps and jobs. */
  toolCallId: string
  /**
   * 64 characters that are the same each time this call runs, whichever worker runs it, and of no other call. A service that
   * takes idempotency keys does the work once with it.
   */
  idempotencyKey: string
}

const storage = new AsyncLocalStorage<ToolCall>()

/** Runs `work` as a part of a tool call. */
export function runWithToolCall<T>(call: ToolCall, work: () => T): T {
  return storage.run(call, work)
}

/** The call that the tool around this is running for. @throws Error outside a worker's tool calls */
export function getToolCall(): ToolCall {
  const call = storage.getStore()
  if (call === undefined) {
    throw new Error(
      'There is no tool call here: only inside the `execute` of a tool that an Offshoot worker runs. Where a host runs the same tool itself, take the idempotency key from something of its own.',
    )
  }
  return call
}
