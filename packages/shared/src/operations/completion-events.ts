// Completion events leave through Inngest's own SDK, one request for each time that the outbox tells: the outbox owns
// retries. The event id makes a second sending harmless.
import { Inngest } from 'inngest'
import { UndeliverableError } from '../contracts/outbox.ts'
import { type Queryable, sql } from '../db/database.ts'
import type { DispatchDependencies } from './dispatch-outbox.ts'

export interface CompletionEvent {
  id: string
  name: string
  data: Record<string, unknown>
}

export interface CompletionEvents {
  /** @throws UndeliverableError when Inngest refuses the event for good; any other error: it may take it later */
  send(jobId: string, event: CompletionEvent): Promise<void>
}

/** What one request gets, its answer included. */
const SEND_LIMIT_MS = 8_000

export function openCompletionEvents({
  config,
  database,
  logger,
}: Pick<DispatchDependencies, 'config' | 'database' | 'logger'>): CompletionEvents {
  // What the SDK complains of is said again, in our words, by whoever tells the outbox.
  const quietly = (...words: unknown[]) => logger.debug({ words }, 'inngest')
  const settings = {
    id: 'offshoot',
    isDev: config.INNGEST_DEV,
    aiMetadata: false,
    logger: { info: quietly, warn: quietly, error: quietly, debug: quietly },
    ...(config.INNGEST_EVENT_KEY === undefined ? {} : { eventKey: config.INNGEST_EVENT_KEY }),
    ...(config.INNGEST_BASE_URL === undefined ? {} : { baseUrl: config.INNGEST_BASE_URL }),
  }
  return {
    async send(jobId, event) {
      // Inngest is off: there is nobody to tell, which is no failure.
      if (!config.INNGEST_DEV && config.INNGEST_EVENT_KEY === undefined) return
      const request = askOnce()
      const client = new Inngest({ ...settings, fetch: request.fetch })
      await Promise.race([client.send(event), request.failure])
      await markFired(database, jobId, event.id)
      logger.debug({ jobId, eventId: event.id }, 'completion event sent')
    },
  }
}

/**
 * The SDK tries five times whatever the answer was, and tells a status in words only. This `fetch` asks once; `failure`
 * rejects as soon as it is clear that the event was not taken.
 */
function askOnce(): { fetch: typeof fetch; failure: Promise<never> } {
  const { promise: failure, reject } = Promise.withResolvers<never>()
  let asked = false
  return {
    failure,
    async fetch(input, init) {
      if (asked) {
        // The SDK comes again although the request went well: what it read was not Inngest's answer.
        reject(new Error('The answer to the event was cut off, or is not one of Inngest. Look at INNGEST_BASE_URL.'))
        throw new Error('fetch failed: this request is made once')
      }
      asked = true
      try {
        const response = await fetch(input, { ...init, signal: AbortSignal.timeout(SEND_LIMIT_MS) })
        if (!response.ok) reject(refusal(response.status))
        return response
      } catch (cause) {
        reject(new Error(`Inngest cannot be reached: ${describeCause(cause)}`, { cause }))
        throw cause
      }
    },
  }
}

/** These say: later. Every other 4xx is what the same event would get again. */
const LATER = new Set([408, 425, 429])

const REFUSALS: Readonly<Record<number, string>> = {
  400: 'it cannot read the event',
  401: 'INNGEST_EVENT_KEY is not valid',
  403: 'INNGEST_EVENT_KEY may not send here',
  404: 'INNGEST_EVENT_KEY is not known',
  413: 'the event is too large',
}

function refusal(status: number): Error {
  if (status < 400 || status >= 500 || LATER.has(status)) return new Error(`Inngest answered ${status}.`)
  return new UndeliverableError(`Inngest refused the event: ${status}, ${REFUSALS[status] ?? 'for good'}.`)
}

function describeCause(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error
  return cause instanceof Error ? cause.message : String(cause)
}

/** A late event of an earlier generation says nothing about the one that runs now. */
async function markFired(database: Queryable, jobId: string, eventId: string): Promise<void> {
  await database.$executeRaw(sql`
    update "offshoot"."AgentJob" set "completionEventFired" = true
    where "id" = ${jobId} and ${eventId} = 'agent-job-' || "id" || '-' || "generation"`)
}
