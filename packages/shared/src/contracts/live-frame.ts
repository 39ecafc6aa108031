import type { UIMessageChunk } from 'ai'

/**
 * One batch of a live stream. Its chunks have the numbers `firstSeq`, `firstSeq + 1`, … of the job. A batch belongs to
 * one attempt: what a new attempt says of a step replaces what an older attempt had said of it.
 */
export interface LiveBatch {
  generation: number
  attempt: number
  firstSeq: number
  chunks: UIMessageChunk[]
  /** The index of the step that begins in this batch; absent when none does, or when an older version wrote it. */
  startsStep?: number
  /** Set on the last batch of a generation. */
  end?: true
}
