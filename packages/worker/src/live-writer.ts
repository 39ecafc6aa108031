// The way of frames from a run to its live stream: the first of a burst goes out at once, what follows within the
// batching interval goes together. All writers of a process share one timer. Frames are for viewers only: with Redis
// away they are dropped, and viewers get the stored messages.
import type { UIMessageChunk } from 'ai'
import type { LiveStreams } from '@offshoot/shared/queue/live-streams'
import type { Signals } from '@offshoot/shared/queue/signals'

/** How long frames are collected before they go out together. */
export const BATCH_MS = 40
/** What a flush waits for at the most; a Redis that is away never answers. */
const FLUSH_LIMIT_MS = 500
/** Frames kept for one job while an append is on its way. */
const MAX_BUFFERED = 2_000

export interface LiveWriter {
  write(chunk: UIMessageChunk): void
  /** Resolves when everything written so far has gone out, or after half a second. */
  flush(): Promise<void>
}

export interface LiveWriters {
  open(attempt: { jobId: string; generation: number; attempt: number; onFenced: () => void }): LiveWriter
}

export function createLiveWriters(liveStreams: LiveStreams, signals: Signals): LiveWriters {
  const dirty = new Set<() => void>()
  let timer: NodeJS.Timeout | undefined

  function schedule(send: () => void): void {
    dirty.add(send)
    timer ??= setTimeout(() => {
      timer = undefined
      const due = [...dirty]
      dirty.clear()
      for (const each of due) each()
    }, BATCH_MS)
  }

  return {
    open({ jobId, generation, attempt, onFenced }) {
      let buffer: UIMessageChunk[] = []
      let underway: Promise<void> | undefined
      let sentAt = -Infinity
      let fenced = false

      function send(): void {
        if (underway !== undefined || buffer.length === 0) return
        const chunks = buffer
        buffer = []
        sentAt = performance.now()
        underway = append(chunks).finally(() => {
          underway = undefined
          if (buffer.length > 0) schedule(send)
        })
      }

      async function append(chunks: UIMessageChunk[]): Promise<void> {
        if (!signals.isReachable()) return
        try {
          const accepted = await liveStreams.append(jobId, { generation, attempt, chunks })
          if (accepted) signals.publish(`live:${jobId}`, 'frames')
          else {
            fenced = true
            onFenced()
          }
        } catch {
          // Redis went away in between: these frames are lost, the record is not.
        }
      }

      return {
        write(chunk) {
          if (fenced || buffer.length >= MAX_BUFFERED) return
          if (!joinDelta(buffer, chunk)) buffer.push(chunk)
          if (performance.now() - sentAt >= BATCH_MS) send()
          else schedule(send)
        },
        async flush() {
          const all = (async () => {
            await underway
            send()
            await underway
          })()
          let limit: NodeJS.Timeout | undefined
          await Promise.race([all, new Promise((resolve) => (limit = setTimeout(resolve, FLUSH_LIMIT_MS)))])
          clearTimeout(limit)
        },
      }
    },
  }
}

/** Joins a text or reasoning delta with the one before it in the batch. */
function joinDelta(buffer: UIMessageChunk[], chunk: UIMessageChunk): boolean {
  if (chunk.type !== 'text-delta' && chunk.type !== 'reasoning-delta') return false
  const last = buffer.at(-1)
  if (last?.type !== chunk.type || last.id !== chunk.id || chunk.providerMetadata !== undefined) return false
  buffer[buffer.length - 1] = { ...last, delta: last.delta + chunk.delta }
  return true
}
