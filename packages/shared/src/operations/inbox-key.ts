// The keys of inbox items: what comes twice is one item.
import { newId } from '../ids.ts'

/** The key of a steer that comes as a message to a busy convo. The sender's message id makes a repeat the same steer. */
export function steerKey(convoId: string, messageId: string | undefined): string {
  return `steer:${convoId}:${messageId ?? newId()}`
}

export function outcomeKey(childJobId: string, generation: number): string {
  return `outcome:${childJobId}:${generation}`
}

/** The id that the message has in the convo's history. */
export function messageIdOfInboxItem(convoId: string, key: string): string {
  const prefix = `steer:${convoId}:`
  return key.startsWith(prefix) ? key.slice(prefix.length) : key
}

/** The key of a message to a job. The sender's id makes a repeat the same message. */
export function messageKey(jobId: string, messageId: string): string {
  return `message:${jobId}:${messageId}`
}
