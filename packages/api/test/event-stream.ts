// Reads server-sent events as they come.
export interface SentEvent {
  id?: string
  data: string
}

export interface EventReader {
  /** Everything that came so far, comments too. */
  text(): string
  /** The next event; undefined at the stream's end. */
  next(): Promise<SentEvent | undefined>
  /** All events up to the stream's end. */
  rest(): Promise<SentEvent[]>
  cancel(): Promise<void>
}

export function readEvents(response: Response): EventReader {
  if (response.body === null) throw new Error('the answer has no body')
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  let all = ''
  let pending = ''
  async function next(): Promise<SentEvent | undefined> {
    for (;;) {
      const end = pending.indexOf('\n\n')
      if (end === -1) {
        const { done, value } = await reader.read()
        if (done) return undefined
        all += value
        pending += value
        continue
      }
      const lines = pending.slice(0, end).split('\n')
      pending = pending.slice(end + 2)
      const data = lines.find((line) => line.startsWith('data: '))?.slice(6)
      const id = lines.find((line) => line.startsWith('id: '))?.slice(4)
      if (data !== undefined) return id === undefined ? { data } : { id, data }
    }
  }
  return {
    text: () => all,
    next,
    async rest() {
      const events: SentEvent[] = []
      for (let event = await next(); event !== undefined; event = await next()) events.push(event)
      return events
    },
    cancel: () => reader.cancel(),
  }
}

/** The chunks of events, without the closing `[DONE]`. */
export function chunksOf(events: readonly SentEvent[]): { type: string; [field: string]: unknown }[] {
  return events
    .filter((event) => event.data !== '[DONE]')
    .map((event) => JSON.parse(event.data) as { type: string; [field: string]: unknown })
}

/** What a viewer reads in the end. */
export function textOf(events: readonly SentEvent[]): string {
  return chunksOf(events)
    .filter((chunk) => chunk.type === 'text-delta')
    .map((chunk) => String(chunk['delta']))
    .join('')
}
