// Stands in for Inngest's event endpoint: takes what the SDK sends, or misbehaves as a test wants.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'

export interface SentEvent {
  id: string
  name: string
  data: Record<string, unknown>
}

/** Answers with a status; takes the event and cuts its answer off; or takes it and never answers. */
export type InngestBehaviour = number | 'cut' | 'hang'

export interface InngestStub {
  /** To be set as `INNGEST_BASE_URL`. */
  url: string
  /** Events that it took. */
  received: SentEvent[]
  /** The id of every event that it was asked to take, in order, whatever became of it. */
  asked: string[]
  behave(behaviour: InngestBehaviour): void
  /** Takes events again, and forgets those so far. */
  reset(): void
  stop(): Promise<void>
}

/** What a refusal's body says. It belongs into no row that users read. */
export const REFUSAL_BODY = 'what the endpoint says of itself'

export async function startInngestStub(): Promise<InngestStub> {
  let behaviour: InngestBehaviour = 200
  const received: SentEvent[] = []
  const asked: string[] = []
  const server = createServer((request, response) => {
    void text(request).then((body) => {
      const events: SentEvent[] = JSON.parse(body)
      asked.push(...events.map(({ id }) => id))
      if (typeof behaviour === 'string' || behaviour === 200) received.push(...events)
      if (behaviour === 'hang') return
      const headers = { 'content-type': 'application/json' }
      if (behaviour === 'cut') {
        response.writeHead(200, { ...headers, 'content-length': '100' })
        response.write('{"ids":', () => response.destroy())
        return
      }
      const answer = behaviour === 200 ? { ids: ['1'], status: 200 } : { error: REFUSAL_BODY, status: behaviour }
      response.writeHead(behaviour, headers).end(JSON.stringify(answer))
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    // It listens on TCP, so its address has a port.
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    received,
    asked,
    behave: (next) => void (behaviour = next),
    reset() {
      behaviour = 200
      received.length = 0
      asked.length = 0
    },
    async stop() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}
