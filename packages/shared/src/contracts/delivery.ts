import { z } from 'zod'

/** What a BullMQ job holds: which agent job it carries, and labels for people. Nothing else (prompts and results live in Postgres). */
export const deliveryDataSchema = z.object({
  agentJobId: z.string(),
  deliverySeq: z.number().int(),
  /** Labels for Bull Board. */
  owner: z.string(),
  parent: z.string().nullable(),
  depth: z.number().int(),
})
export type DeliveryData = z.infer<typeof deliveryDataSchema>

/** The id of a delivery. A job gets a new number with every delivery, since adding an id that is kept does nothing. */
export function deliveryId(agentJobId: string, deliverySeq: number): string {
  return `${agentJobId}-${deliverySeq}`
}

/** What comes before everything else. */
export const PRIORITY_FIRST = 1
/** That of a new job whose owner has no other. */
export const PRIORITY_BASE = 10
/** BullMQ refuses priorities over 2^21. */
export const PRIORITY_MAX = 2_097_151
