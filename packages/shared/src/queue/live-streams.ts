// Live streams: what viewers follow. One capped Redis stream a job, under a hash tag of its own, so that streams spread
// over a cluster. An entry is one batch of frames. Appending is one script that refuses a batch of an attempt older than
// the newest it has seen, appends a batch once however often it is sent, and numbers the frames. What is over the limits
// goes from the front; at a job's end nearly all goes, since its messages are stored by then. A viewer that misses frames
// sees it by their numbers, and gets from the record what they said (operations/job-frames.ts).
import type { UIMessageChunk } from 'ai'
import type { Config } from '../config.ts'
import type { LiveBatch } from '../contracts/live-frame.ts'
import type { Logger } from '../logger.ts'
import { ANSWER_LIMIT_MS, closeRedis, openRedis, type RedisClient } from './redis.ts'
import { withLimit } from '../with-limit.ts'

/** Batches kept a job. */
export const MAX_BATCHES = 5_000
/** How long a stream outlives its job's end. */
export const EXPIRE_SECONDS = 3_600
/** And its newest attempt's first batch: a job lasts a day at the most. */
const LIVE_EXPIRE_SECONDS = 90_000
/** Bytes of frames kept while a job runs: as many batches at 200 bytes, minutes of an ordinary answer. */
export const MAX_BYTES = 1_000_000
/** And once it has ended: what a viewer that was following may not have read yet. */
export const MAX_BYTES_AT_END = 16_000
export const READ_COUNT = 500

/**
 * KEYS: stream, fence. ARGV: generation, attempt, batch number of the attempt, number of frames, frames as JSON, the
 * highest number that the writer knows of, three flags ("1" or "0": last batch, ends a step, begins a step anew), and the
 * index of the step that begins in the batch, or "".
 * Answers the number of the last frame, or -1 when a newer attempt has written. The fence is a hash of the newest
 * generation, attempt and batch number, the number of the last frame, that of the last frame that ended a step, and the
 * bytes and number of all batches kept. The newest batch always stays.
 */
const APPEND_SCRIPT = `
local function size(entry) return #entry[2][6] end
local fence = redis.call('HMGET', KEYS[2], 'generation', 'attempt', 'batch', 'seq', 'stepSeq', 'bytes', 'count')
local generation, attempt = tonumber(fence[1] or '0'), tonumber(fence[2] or '0')
local ours, oursAttempt = tonumber(ARGV[1]), tonumber(ARGV[2])
if ours < generation or (ours == generation and oursAttempt < attempt) then return -1 end
local seq = math.max(tonumber(fence[4] or '0'), tonumber(ARGV[6]))
local same = ours == generation and oursAttempt == attempt
if same and tonumber(fence[3] or '0') >= tonumber(ARGV[3]) then return seq end
local bytes, count = tonumber(fence[6] or '0'), tonumber(fence[7] or '0')
if ARGV[9] == '1' then
  local cut = redis.call('XRANGE', KEYS[1], '(' .. (fence[5] or '0') .. '-0', '+')
  for _, entry in ipairs(cut) do
    bytes, count = bytes - size(entry), count - 1
    redis.call('XDEL', KEYS[1], entry[1])
  end
end
local last = seq + tonumber(ARGV[4])
local stepSeq = ARGV[8] == '1' and last or (fence[5] or 0)
if last > seq then
  redis.call('XADD', KEYS[1], (seq + 1) .. '-0', 'g', ARGV[1], 'a', ARGV[2], 'f', ARGV[5], 'e', ARGV[7], 's', ARGV[10])
  bytes, count = bytes + #ARGV[5], count + 1
  local limit = ARGV[7] == '1' and ${MAX_BYTES_AT_END} or ${MAX_BYTES}
  while count > 1 and (bytes > limit or count > ${MAX_BATCHES}) do
    for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 20)) do
      if count == 1 or (bytes <= limit and count <= ${MAX_BATCHES}) then break end
      bytes, count = bytes - size(entry), count - 1
      redis.call('XDEL', KEYS[1], entry[1])
    end
  end
end
redis.call('HSET', KEYS[2], 'generation', ARGV[1], 'attempt', ARGV[2], 'batch', ARGV[3],
  'seq', last, 'stepSeq', stepSeq, 'bytes', bytes, 'count', count)
if not same or ARGV[7] == '1' then
  local seconds = ARGV[7] == '1' and ${EXPIRE_SECONDS} or ${LIVE_EXPIRE_SECONDS}
  redis.call('EXPIRE', KEYS[1], seconds)
  redis.call('EXPIRE', KEYS[2], seconds)
end
return last
`

export interface NewBatch {
  generation: number
  attempt: number
  /** 1, 2, … of the attempt: a batch that is sent again, since its answer was lost, is appended once. */
  number: number
  chunks: UIMessageChunk[]
  /** The number of the last frame that the writer knows of, so that numbers go on after Redis was emptied. */
  afterSeq?: number
  /** The last batch of the generation. */
  end?: boolean
  /** The index of the step that begins in the batch. */
  startsStep?: number
  /** The batch ends with a step's last frame. */
  endsStep?: boolean
  /** The attempt makes its first step again: what an older one had said of it goes. */
  restartsStep?: boolean
}

export interface LiveStreams {
  /**
   * Appends a batch; with no chunks it only announces the attempt, so that older ones are refused from then on.
   * @returns the number of its last frame, or false when a newer attempt has written: nothing was appended
   */
  append(jobId: string, batch: NewBatch): Promise<number | false>
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
    async append(jobId, batch) {
      const { generation, attempt, number, chunks, afterSeq = 0 } = batch
      const flags = [batch.end, batch.endsStep, batch.restartsStep].map((flag) => (flag === true ? '1' : '0'))
      const key = streamKey(jobId)
      const frames = JSON.stringify(chunks)
      const values = [generation, attempt, number, chunks.length, frames, afterSeq, ...flags, batch.startsStep ?? '']
      const last = await scripts.offshootAppendLive(key, `${key}:fence`, ...values)
      return last === -1 ? false : last
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
  const startsStep = values.get('s') ?? ''
  const batch: LiveBatch = {
    generation: Number(values.get('g')),
    attempt: Number(values.get('a')),
    firstSeq: Number(id.split('-')[0]),
    chunks,
    ...(startsStep === '' ? {} : { startsStep: Number(startsStep) }),
  }
  return values.get('e') === '1' ? { ...batch, end: true } : batch
}
