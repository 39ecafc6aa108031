// The inbox of an attempt: what was said to its job and waits for the next step.
import { loadInbox, type StoredInboxItem } from '@offshoot/shared/db/journal'
import { untilPostgresAnswers } from './persist.ts'
import type { Attempt } from './run-agent.ts'

export interface RunInbox {
  /** Whether an attempt that goes on finds unread items. A fresh one looks when its first step begins. */
  hasUnread(): Promise<boolean>
  /** The unread items, before a step; those of layers are fetched first. */
  take(): Promise<StoredInboxItem[]>
  /** Whether there were unread items when the last step became whole. */
  noteUnread(unread: boolean): void
}

/** How long the answer of another statement counts as a look. Connecting to a tool server may take longer. */
const LOOK_COUNTS_MS = 300

/** Looks only where there may be something. What comes between two looks is for the step after. */
export function watchInbox({ runtime, job, layers, stopSwitch, entry, msLeft }: Attempt): RunInbox {
  const { database, logger } = runtime
  let mayHaveItems = entry !== 'fresh' || job.hasInbox
  let lookedAt = performance.now() - (job.msLeft - msLeft())
  const unread = async () => (await loadInbox(database, job.id)).filter((item) => item.consumedAtStep === null)
  return {
    hasUnread: async () => entry !== 'fresh' && (await unread()).length > 0,
    async take() {
      await layers.catchUp()
      const knowsNone = !mayHaveItems && performance.now() - lookedAt < LOOK_COUNTS_MS
      if (knowsNone && layers.layers.length === 0) return []
      return untilPostgresAnswers(unread, { stopSwitch, logger, jobId: job.id })
    },
    noteUnread(found) {
      mayHaveItems = found
      lookedAt = performance.now()
    },
  }
}
