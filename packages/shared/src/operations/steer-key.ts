import { newId } from '../ids.ts'

/** The key of a steer that comes as a message to a busy convo. The sender's message id makes a repeat the same steer. */
export function steerKey(convoId: string, messageId: string | undefined): string {
  return `steer:${convoId}:${messageId ?? newId()}`
}

/** The id that the message has in the convo's history. */
export function messageIdOfSteer(convoId: string, key: string): string {
  const prefix = `steer:${convoId}:`
  return key.startsWith(prefix) ? key.slice(prefix.length) : key
}
