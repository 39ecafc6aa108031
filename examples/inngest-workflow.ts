// A config module with a function that spawns a sub-agent, waits for its completion event and goes on:
// OFFSHOOT_CONFIG=<this file>. docs/guide/workflows.md explains it.
import { defineConfig } from '@offshoot/shared/extensions'
import { eventType, Inngest } from 'inngest'
import { z } from 'zod'

const inngest = new Inngest({ id: 'shop' })

const ticketOpened = eventType('ticket/opened', {
  schema: z.object({ ticket: z.number(), userId: z.string(), question: z.string() }),
})
const questionAnswered = eventType('question/answered', {
  schema: z.object({ jobId: z.string(), state: z.string(), result: z.string() }),
})
type Question = z.infer<typeof ticketOpened.schema>

/** Imported only when a function runs: createOffshoot loads this module, and would wait for itself. */
const connect = async () => (await import('./offshoot-client.ts')).offshoot

/** Spawns once a run: a step that Inngest runs again gives the same key, and so gets the same job. */
async function spawnOnce({ ticket, userId, question }: Question, runId: string): Promise<string> {
  const offshoot = await connect()
  const convoId = `ticket-${ticket}`
  const handle = await offshoot.spawn(
    { userId, parentConvoId: convoId, parentConvoOwnerId: userId, parentConvoSpaceId: null, spawnDepth: 0 },
    {
      bot: { botGroup: 'forge', botHandle: 'researcher' },
      message: question,
      mode: 'async',
      completionEvent: { name: questionAnswered.name, data: { ticket } },
    },
    { idempotencyKey: `research-ticket-${runId}` },
  )
  if (handle.id === '') throw new Error((await handle.error()) ?? 'The spawn was refused.')
  return handle.id
}

/** Ends a job that nobody waits for any longer. One that had ended by then is as it was. */
async function endWaiting(userId: string, jobId: string): Promise<{ state: string; result: string }> {
  const offshoot = await connect()
  await offshoot.abort(userId, { jobId, reason: 'the ticket has waited long enough' })
  const { state, result = '' } = await offshoot.check(userId, { jobId })
  return { state, result }
}

/** Stands for your help desk. */
function reply(ticket: number, text: string): string {
  return `Ticket ${ticket}: ${text}`
}

export const researchTicket = inngest.createFunction(
  { id: 'research-ticket', triggers: ticketOpened },
  async ({ event, runId, step }) => {
    const { ticket, userId } = event.data
    const jobId = await step.run('spawn', () => spawnOnce(event.data, runId))
    const answered = await step.waitForEvent('wait-for-answer', {
      event: questionAnswered,
      if: `async.data.jobId == "${jobId}"`,
      timeout: '30m',
    })
    // Nothing came: the job is too slow, or its event came before this run waited, or not at all. The record knows.
    const { state, result } = answered?.data ?? (await step.run('end-waiting', () => endWaiting(userId, jobId)))
    return step.run('reply', () => reply(ticket, state === 'completed' ? result : 'A person will look into this.'))
  },
)

export default defineConfig({ inngestFunctions: [researchTicket] })
