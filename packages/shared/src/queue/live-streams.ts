// Live streams: what viewers follow. One capped Redis stream a job, under a hash tag of its own, so that streams spread
// over a cluster. An entry is one batch of frames. Appending is one script that refuses a batch of an attempt older than
// the newest it has seen, and numbers the frames.
import type { UIMessageChunk } from 'ai'
import type { Config } from '../config.ts'
import type { LiveBatch } from '../contracts/live-frame.ts'
import type { Logger } from '../logger.ts'
import { ANSWER_LIMIT_MS, closeRedis, openRedis, type RedisClient } from './redis.ts'
import { withLimit } from '../with-limit.ts'

/** Batches kept a job, and how long a stream outlives its last batch. */
const MAX_BATCHES = 5_000
const EXPIRE_SECONDS = 3_600
const READ_COUNT = 500

/**
 * KEYS: stream, fence. ARGV: generation, attempt, number of frames, frames as JSON, "1" for the last batch.
 * Answers the first frame's number, or -1 when a newer attempt has written. The fence is a hash of the newest
 * generation and attempt and the number of the last frame.
 */
const APPEND_SCRIPT = `
local fence = redis.call('HMGET', KEYS[2], 'generation', 'attempt', 'seq')
local generation, attempt = tonumber(fence[1] or '0'), tonumber(fence[2] or '0')
local ours, oursAttempt = tonumber(ARGV[1]), tonumber(ARGV[2])
if ours < generation or (ours == generation and oursAttempt < attempt) then return -1 end
local first = tonumber(fence[3] or '0') + 1
local count = tonumber(ARGV[3])
redis.call('HSET', KEYS[2], 'generation', ARGV[1], 'attempt', ARGV[2], 'seq', first + count - 1)
if count > 0 then
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ${MAX_BATCHES}, first .. '-0', 'g', ARGV[1], 'a', ARGV[2], 'f', ARGV[4], 'e', ARGV[5])
  redis.call('EXPIRE', KEYS[1], ${EXPIRE_SECONDS})
end
redis.call('EXPIRE', KEYS[2], ${EXPIRE_SECONDS})
return first
`

export interface LiveStreams {
  /**
   * Appends a batch; with no chunks it only announces the attempt, so that older ones are refused from then on.
   * @returns false when a newer attempt has written: nothing was appended
   */
  append(
    jobId: string,
    batch: { generation: number; attempt: number; chunks: UIMessageChunk[]; end?: boolean },
  ): Promise<boolean>
  // Both reads throw when Redis does not answer within a second.
  /** The batches with a frame after number `afterSeq`, oldest first; at most `atMost`, 500 by default. */
  read(jobId: string, afterSeq: number, atMost?: number): Promise<LiveBatch[]>
  /** The newest batches, oldest first; at most 500. */
  readTail(jobId: string): Promise<LiveBatch[]>
  close(): Promise<void>
}

interface WithAppend {
  offshootAppendLive(stream: string, fence: string, ...values: (string | number)[]): Promise<number>
}

export function openLiveStreams(config: Config, logger: Logger): LiveStreams {
  const redis = openRedis(config, logger, 'live')
  redis.defineCommand('offshootAppendLive', { numberOfKeys: 2, lua: APPEND_SCRIPT })
  // defineCommand adds the method at run time; ioredis has no type for that.
  const scripts = redis as RedisClient & WithAppend
  const base = config.QUEUE_PREFIX.replaceAll(/[{}]/g, '')
  const streamKey = (jobId: string) => `${base}:live:{${jobId}}`

  return {
    async append(jobId, { generation, attempt, chunks, end }) {
      const key = streamKey(jobId)
      const first = await scripts.offshootAppendLive(
        key,
        `${key}:fence`,
        generation,
        attempt,
        chunks.length,
        JSON.stringify(chunks),
        end ? '1' : '0',
      )
      return first !== -1
    },
    async read(jobId, afterSeq, atMost = READ_COUNT) {
      // An entry's id is its first frame's number, so the entry that holds `afterSeq + 1` may begin before it.
      const key = streamKey(jobId)
      const answer = Promise.all([
        redis.xrevrange(key, `${Math.max(afterSeq, 0)}-0`, '-', 'COUNT', 1),
        redis.xrange(key, `(${Math.max(afterSeq, 0)}-0`, '+', 'COUNT', atMost),
      ])
      const [before, after] = await withLimit(answer, ANSWER_LIMIT_MS)
      return [...before, ...after]
        .map(parseBatch)
        .filter((batch) => batch.firstSeq + batch.chunks.length - 1 > afterSeq)
    },
    async readTail(jobId) {
      const answer = redis.xrevrange(streamKey(jobId), '+', '-', 'COUNT', READ_COUNT)
      const newest = await withLimit(answer, ANSWER_LIMIT_MS)
      return newest.toReversed().map(parseBatch)
    },
    close: () => closeRedis(redis),
  }
}

function parseBatch([id, fields]: [id: string, fields: string[]]): LiveBatch {
  const values = new Map<string, string>()
  for (let at = 0; at + 1 < fields.length; at += 2) values.set(fields[at] ?? '', fields[at + 1] ?? '')
  const chunks: UIMessageChunk[] = JSON.parse(values.get('f') ?? '[]')
  const batch: LiveBatch = {
    generation: Number(values.get('g')),
    attempt: Number(values.get('a')),
    firstSeq: Number(id.split('-')[0]),
    chunks,
  }
  return values.get('e') === '1' ? { ...batch, end: true } : batch
}
