// Group commit: what many jobs write at the same time goes to Postgres in one statement and one commit. One group is on
// its way; what comes meanwhile goes with the next. An item alone is a group of one, and waits for nobody.

/** Items of one group, unless said otherwise: beyond that one statement takes longer than two. */
const MAX_GROUP = 100
/** How long a group is waited for by the next one: a connection that hangs, or a lock, holds up its own items alone. */
const PATIENCE_MS = 500

export interface GroupOptions<Item, Answer> {
  /**
   * Writes a group and answers in its order. `apart`: this item waits for somebody else's lock, or needs more than the
   * group's statement does; it goes alone, so that nobody else waits for it.
   */
  writeGroup(items: readonly Item[]): Promise<(Answer | 'apart')[]>
  /** Items of one group at the most. All of them go on in the same turn of the event loop. */
  maxGroup?: number
  /** Writes one item, waiting for whatever it must. */
  writeAlone(item: Item): Promise<Answer>
}

/**
 * @returns a function that writes an item. It rejects as `writeAlone` does: when a group fails, each of its items goes
 * alone, so that one cannot fail the others.
 */
export function createGroupCommit<Item, Answer extends object | null>(
  options: GroupOptions<Item, Answer>,
): (item: Item) => Promise<Answer> {
  const { writeGroup, writeAlone, maxGroup = MAX_GROUP } = options
  let waiting: { item: Item; resolve: (answer: Answer | Promise<Answer>) => void }[] = []
  let underway: symbol | undefined

  async function writeNext(): Promise<void> {
    const group = waiting.slice(0, maxGroup)
    waiting = waiting.slice(maxGroup)
    try {
      const answers = await writeGroup(group.map(({ item }) => item))
      for (const [at, { item, resolve }] of group.entries()) {
        const answer = answers[at]
        resolve(answer === 'apart' || answer === undefined ? writeAlone(item) : answer)
      }
    } catch {
      for (const { item, resolve } of group) resolve(writeAlone(item))
    }
  }

  function begin(): void {
    if (underway !== undefined || waiting.length === 0) return
    const own = Symbol('group')
    underway = own
    const goOn = () => {
      if (underway !== own) return
      underway = undefined
      begin()
    }
    // What comes in the same turn of the event loop goes along.
    setImmediate(() => {
      const patience = setTimeout(goOn, PATIENCE_MS)
      void writeNext().finally(() => {
        clearTimeout(patience)
        goOn()
      })
    })
  }

  return (item) =>
    new Promise((resolve) => {
      waiting.push({ item, resolve })
      begin()
    })
}
