// What the outbox can hold: one shape for each kind, written by the operations and told by dispatch-outbox.
import { z } from 'zod'
import { deliveryDataSchema } from './delivery.ts'
import { TERMINAL_STATES } from './job-state.ts'

/** Of an inline job: the worker in whose process the delivery is. Absent: it is in BullMQ's queue. */
const workerId = z.string().optional()

export const outboxMessageSchema = z.discriminatedUnion('kind', [
  /** Bring a pending job to a worker. */
  z.object({
    kind: z.literal('delivery'),
    payload: z.object({ lane: z.string(), name: z.string(), priority: z.number(), data: deliveryDataSchema, workerId }),
  }),
  /** Take a delivery out of the queue that nobody needs any more. */
  z.object({ kind: z.literal('removal'), payload: z.object({ lane: z.string(), deliverySeq: z.number(), workerId }) }),
  /** Tell those who wait, and end the live stream. */
  z.object({
    kind: z.literal('ended'),
    payload: z.object({
      generation: z.number(),
      attempt: z.number(),
      state: z.enum(TERMINAL_STATES),
      reason: z.string(),
      error: z.string().nullable(),
      /** The frame that ends the last step has not gone out: it comes with the end. */
      endsStep: z.boolean().optional(),
    }),
  }),
  /** Bring a sub-agent's outcome to a convo whose turn has ended. */
  z.object({
    kind: z.literal('outcome'),
    payload: z.object({
      convoId: z.string(),
      key: z.string(),
      text: z.string(),
      /** Begin a new turn with it. */
      wakeIdle: z.boolean(),
    }),
  }),
  /** Send an event to Inngest. */
  z.object({
    kind: z.literal('completionEvent'),
    payload: z.object({ id: z.string(), name: z.string(), data: z.record(z.string(), z.unknown()) }),
  }),
])
/** What an entry can be about. */
export const OUTBOX_KINDS = outboxMessageSchema.options.map((option) => option.shape.kind.value)
export type OutboxMessage = z.infer<typeof outboxMessageSchema>

/** Telling again cannot help: the entry becomes a dead letter at once. */
export class UndeliverableError extends Error {
  override name = 'UndeliverableError'
}
