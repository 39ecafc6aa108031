// The one place that understands the errors of BullMQ and of the Redis behind it, and that words ours as BullMQ wants them.
import { DelayedError, UnrecoverableError } from 'bullmq'

/** Redis has answered, and refuses: it is full, a replica, or loading. Without an answer nothing is known. */
export function isRefusal(error: unknown): error is Error {
  return error instanceof Error && error.name === 'ReplyError'
}

/** A delivery was not removed, since a worker holds it. */
export function isHeldByWorker(error: unknown): boolean {
  return error instanceof Error && error.message.endsWith('is locked by another worker')
}

/** What a processor throws for a delivery that it has moved to where it waits to be brought again. */
export function comesAgain(words: string): Error {
  return new DelayedError(words)
}

/** What a processor throws for a delivery that has failed. It is not tried again: that is for our policy to decide. */
export function failedForGood(words: string): Error {
  return new UnrecoverableError(words)
}
