// A config module with a function that goes on where a sub-agent ended: OFFSHOOT_CONFIG=<this file>
import { defineConfig } from '@offshoot/shared/extensions'
import { Inngest } from 'inngest'

const inngest = new Inngest({ id: 'shop' })

const answerTicket = inngest.createFunction(
  { id: 'answer-ticket', triggers: { event: 'question/answered' } },
  ({ event }) => {
    const { ticket, state, result } = event.data
    return state === 'completed' ? `Ticket ${ticket}: ${result}` : `Ticket ${ticket} needs a person.`
  },
)

export default defineConfig({ inngestFunctions: [answerTicket] })
