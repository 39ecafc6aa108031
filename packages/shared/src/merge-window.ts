// How long deltas of a text are collected before they go on as one. One timer serves all streams of a process. What a model
// says in tokens costs its provider package and viewers several times what it costs to join them; a process full of agents joins
// more of them.

/** How long at least: what a reader does not see. */
const SHORTEST_MS = 40
/** And at most, in a process full of agents. */
const LONGEST_MS = 1_000
/** Beyond 80 streams the window grows with their number. */
const MS_A_STREAM = 0.5

/** Streams that are flushed in one turn of the event loop: others want it, too. */
const MAX_AT_ONCE = 50

export interface MergeWindow {
  /** How long deltas are collected now, in milliseconds. */
  ms(): number
  /** Counts a model's stream until the returned function is called. */
  open(): () => void
  /** Calls `flush` at an instant of `performance.now()`, mostly the end of a window. */
  schedule(dueAt: number, flush: () => void): void
}

/** The window of all streams of a process. It stays well below `chunkMs`, after which a silent model counts as stuck. */
export function createMergeWindow({ chunkMs }: { chunkMs: number }): MergeWindow {
  const longestMs = Math.min(LONGEST_MS, chunkMs / 4)
  let streams = 0
  /** In the order in which they are due, which is nearly that in which they come. */
  let waiting: { dueAt: number; flush: () => void }[] = []
  let timer: NodeJS.Timeout | undefined
  const ms = () => Math.min(Math.max(SHORTEST_MS, streams * MS_A_STREAM), longestMs)

  function flushDue(): void {
    timer = undefined
    const now = performance.now()
    const first = waiting.findIndex(({ dueAt }, at) => dueAt > now + 1 || at === MAX_AT_ONCE)
    const due = first === -1 ? waiting : waiting.slice(0, first)
    waiting = first === -1 ? [] : waiting.slice(first)
    arm()
    for (const { flush } of due) flush()
  }

  function arm(): void {
    const next = waiting[0]
    if (next !== undefined) timer ??= setTimeout(flushDue, Math.max(1, next.dueAt - performance.now()))
  }

  return {
    ms,
    open() {
      streams += 1
      return () => void (streams -= 1)
    },
    schedule(dueAt, flush) {
      waiting.splice(waiting.findLastIndex((each) => each.dueAt <= dueAt) + 1, 0, { dueAt, flush })
      arm()
    },
  }
}
