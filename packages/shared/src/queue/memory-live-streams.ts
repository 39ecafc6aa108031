// Live streams within one process, for a host without Redis. They follow the same rules as the script of
// live-streams.ts, and hold frames as JSON, too: what a tool does to its output later is not seen.
import type { UIMessageChunk } from 'ai'
import type { LiveBatch } from '../contracts/live-frame.ts'
import {
  EXPIRE_SECONDS,
  type LiveStreams,
  MAX_BATCHES,
  MAX_BYTES,
  MAX_BYTES_AT_END,
  READ_COUNT,
} from './live-streams.ts'

/** A stream that has ended goes sooner: the memory is the host's own, and the messages are in Postgres. */
const EXPIRE_ENDED_SECONDS = 300

interface StoredBatch {
  generation: number
  attempt: number
  firstSeq: number
  lastSeq: number
  /** JSON. */
  chunks: string
  /** Of `chunks`. */
  bytes: number
  startsStep: number | undefined
  end: boolean
}

interface Stream {
  /** The newest attempt that has written, its last batch, and the number of the last frame. */
  generation: number
  attempt: number
  batch: number
  seq: number
  /** The number of the last frame that ended a step. */
  stepSeq: number
  ended: boolean
  /** When the last batch was appended. */
  touchedAt: number
  /** Of all batches. */
  bytes: number
  batches: StoredBatch[]
}

/** `now` counts milliseconds. */
export function openMemoryLiveStreams(now = () => performance.now()): LiveStreams {
  const streams = new Map<string, Stream>()

  function open(jobId: string): Stream {
    const known = streams.get(jobId)
    if (known !== undefined) return known
    const stream: Stream = {
      generation: 0,
      attempt: 0,
      batch: 0,
      seq: 0,
      stepSeq: 0,
      ended: false,
      touchedAt: 0,
      bytes: 0,
      batches: [],
    }
    streams.set(jobId, stream)
    return stream
  }

  function removeExpired(): void {
    for (const [jobId, { ended, touchedAt }] of streams) {
      if (now() - touchedAt > 1_000 * (ended ? EXPIRE_ENDED_SECONDS : EXPIRE_SECONDS)) streams.delete(jobId)
    }
  }

  return {
    append(jobId, batch) {
      const { generation, attempt, number, chunks, afterSeq = 0, end = false } = batch
      const stream = open(jobId)
      const isOlder = generation < stream.generation || (generation === stream.generation && attempt < stream.attempt)
      if (isOlder) return Promise.resolve(false)
      const seq = Math.max(stream.seq, afterSeq)
      const isSame = generation === stream.generation && attempt === stream.attempt
      if (isSame && stream.batch >= number) return Promise.resolve(seq)
      if (batch.restartsStep === true) {
        const kept = stream.batches.filter(({ firstSeq }) => firstSeq <= stream.stepSeq)
        Object.assign(stream, { batches: kept, bytes: kept.reduce((sum, { bytes }) => sum + bytes, 0) })
      }
      const lastSeq = seq + chunks.length
      Object.assign(stream, { generation, attempt, batch: number, seq: lastSeq, touchedAt: now() })
      if (batch.endsStep === true) stream.stepSeq = lastSeq
      if (chunks.length > 0) {
        stream.ended = end
        const frames = JSON.stringify(chunks)
        const bytes = Buffer.byteLength(frames)
        const { startsStep } = batch
        stream.batches.push({ generation, attempt, firstSeq: seq + 1, lastSeq, chunks: frames, bytes, startsStep, end })
        stream.bytes += bytes
        removeOverLimit(stream, end ? MAX_BYTES_AT_END : MAX_BYTES)
      }
      if (end) removeExpired()
      return Promise.resolve(lastSeq)
    },
    read(jobId, afterSeq, atMost = READ_COUNT) {
      const batches = streams.get(jobId)?.batches ?? []
      const first = batches.findLastIndex(({ lastSeq }) => lastSeq <= afterSeq) + 1
      return Promise.resolve(batches.slice(first, first + atMost).map(parseBatch))
    },
    readTail: (jobId) => Promise.resolve((streams.get(jobId)?.batches ?? []).slice(-READ_COUNT).map(parseBatch)),
    close() {
      streams.clear()
      return Promise.resolve()
    },
  }
}

/** What is over the limits goes from the front; the newest batch always stays. */
function removeOverLimit(stream: Stream, maxBytes: number): void {
  const { batches } = stream
  let over = 0
  while (over < batches.length - 1 && (stream.bytes > maxBytes || batches.length - over > MAX_BATCHES)) {
    stream.bytes -= batches[over]?.bytes ?? 0
    over += 1
  }
  batches.splice(0, over)
}

function parseBatch({ generation, attempt, firstSeq, chunks, startsStep, end }: StoredBatch): LiveBatch {
  const parsed: UIMessageChunk[] = JSON.parse(chunks)
  return {
    generation,
    attempt,
    firstSeq,
    chunks: parsed,
    ...(startsStep === undefined ? {} : { startsStep }),
    ...(end ? { end } : {}),
  }
}
