// Completion events leave through Inngest's own SDK; the event id makes a second sending harmless.
import { Inngest } from 'inngest'
import { type Queryable, sql } from '../db/database.ts'
import type { DispatchDependencies } from './dispatch-outbox.ts'

export interface CompletionEvent {
  id: string
  name: string
  data: Record<string, unknown>
}

export interface CompletionEvents {
  send(jobId: string, event: CompletionEvent): Promise<void>
}

export function openCompletionEvents({
  config,
  database,
  logger,
}: Pick<DispatchDependencies, 'config' | 'database' | 'logger'>): CompletionEvents {
  let client: Inngest | undefined
  return {
    async send(jobId, event) {
      // Inngest is off: there is nobody to tell, which is no failure.
      if (!config.INNGEST_DEV && config.INNGEST_EVENT_KEY === undefined) return
      client ??= new Inngest({
        id: 'offshoot',
        isDev: config.INNGEST_DEV,
        ...(config.INNGEST_EVENT_KEY === undefined ? {} : { eventKey: config.INNGEST_EVENT_KEY }),
        ...(config.INNGEST_BASE_URL === undefined ? {} : { baseUrl: config.INNGEST_BASE_URL }),
      })
      await client.send(event)
      await markFired(database, jobId, event.id)
      logger.debug({ jobId, eventId: event.id }, 'completion event sent')
    },
  }
}

/** An event that is sent late must not stand for that of the generation which a retry has begun since. */
async function markFired(database: Queryable, jobId: string, eventId: string): Promise<void> {
  await database.$executeRaw(sql`
    update "offshoot"."AgentJob" set "completionEventFired" = true
    where "id" = ${jobId} and ${eventId} = 'agent-job-' || "id" || '-' || "generation"`)
}
