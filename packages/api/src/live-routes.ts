// Server-sent events: a job's frames as the AI SDK's UI message stream. A viewer is served one frame after the other, so
// one that does not read holds a few batches in memory and slows nobody; leaving never stops the job.
import { jobFrames } from '@offshoot/shared/operations/job-frames'
import type { Runtime } from '@offshoot/shared/runtime'
import { UI_MESSAGE_STREAM_HEADERS } from 'ai'
import type { Request, Response } from 'express'
import type { OpenRequests } from './open-requests.ts'

/** A comment at least every 15 s keeps proxies from closing a quiet stream (UX-2). */
const HEARTBEAT_MS = 14_000
/** A viewer that takes nothing for this long is cut off; it may come back with its cursor. */
const STALLED_VIEWER_MS = 120_000

export interface LiveContext {
  runtime: Pick<Runtime, 'database' | 'signals' | 'liveStreams' | 'logger'>
  openRequests: OpenRequests
}

/** Answers with a job's stream, from the request's cursor to the job's end. */
export async function streamJob(
  { runtime, openRequests }: LiveContext,
  request: Request,
  response: Response,
  job: { id: string },
): Promise<void> {
  const signal = openRequests.signalOf(response)
  response
    .status(200)
    .set({ ...UI_MESSAGE_STREAM_HEADERS, 'cache-control': 'no-cache, no-transform', 'x-agent-job-id': job.id })
  if (request.method === 'HEAD') return void response.end()
  response.flushHeaders()
  response.write(': open\n\n')
  const heartbeat = setInterval(() => {
    if (!response.writableNeedDrain) response.write(': heartbeat\n\n')
  }, HEARTBEAT_MS)
  try {
    for await (const { seq, chunk } of jobFrames(runtime, job, { afterSeq: readCursor(request), signal })) {
      const id = seq === undefined ? '' : `id: ${seq}\n`
      if (!response.write(`${id}data: ${JSON.stringify(chunk)}\n\n`) && !(await drained(response, signal)))
        return void response.destroy()
    }
    if (!signal.aborted) response.write('data: [DONE]\n\n')
    response.end()
  } finally {
    clearInterval(heartbeat)
  }
}

/** The number of the last frame that the viewer has; anything that is no such number means: from the start. */
export function readCursor(request: Request): number {
  const { cursor } = request.query
  const given = request.get('last-event-id') ?? (typeof cursor === 'string' ? cursor : '')
  return /^\d{1,15}$/.test(given) ? Number(given) : 0
}

/** Resolves when the viewer takes data again or is gone; false when it took nothing for too long. */
async function drained(response: Response, signal: AbortSignal): Promise<boolean> {
  if (signal.aborted || !response.writableNeedDrain) return true
  return new Promise((resolve) => {
    const settle = (inTime: boolean) => {
      clearTimeout(timer)
      response.off('drain', onDrain)
      signal.removeEventListener('abort', onDrain)
      resolve(inTime)
    }
    const onDrain = () => settle(true)
    const timer = setTimeout(() => settle(false), STALLED_VIEWER_MS)
    response.once('drain', onDrain)
    signal.addEventListener('abort', onDrain)
  })
}
