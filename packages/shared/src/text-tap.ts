// Lets whoever calls a model hear its text before the provider package has read it. What a token costs there is many times
// what it costs to hear it: the provider gets a text's first delta, and the rest of it in one piece.
import { AsyncLocalStorage } from 'node:async_hooks'

/**
 * Gets a piece of a text: the id of the text, how many characters (UTF-16) of it come before the piece, and the piece. False:
 * it is not wanted, and comes through the provider.
 */
export type TextTap = (id: string, at: number, piece: string) => boolean

const storage = new AsyncLocalStorage<TextTap>()

/** Gives a tap to the model calls that `call` makes. Only the built-in provider's `fetch` knows of it (merging-fetch.ts). */
export function runWithTextTap<T>(tap: TextTap, call: () => T): T {
  return storage.run(tap, call)
}

export function currentTextTap(): TextTap | undefined {
  return storage.getStore()
}
