import { z } from 'zod'
import { jobStateSchema, waitingOnSchema } from './job-state.ts'
import { reasonSchema } from './reason.ts'
import { usageSchema } from './usage.ts'

/** What a job and all its descendants have used up to now, whether they run, have completed, failed or been aborted. */
export const subtreeTotalsSchema = z.object({
  jobs: z.number().int().describe('the job itself included'),
  usage: usageSchema.describe('each model call counts once'),
  costUsd: z.number().nullable().describe('of the calls whose price is known; null: of none'),
})
export type SubtreeTotals = z.infer<typeof subtreeTotalsSchema>

/** A job as lists and trees show it. */
export const agentJobViewSchema = z.object({
  jobId: z.string(),
  bot: z.string().describe('group/handle'),
  state: jobStateSchema,
  reason: reasonSchema.optional(),
  waitingOn: waitingOnSchema.optional(),
  convoId: z.string(),
  parentJobId: z.string().optional(),
  rootJobId: z.string(),
  depth: z.number().int(),
  mode: z.enum(['sync', 'async', 'turn']),
  ownerId: z.string(),
  triggeredBy: z.string(),
  tags: z.record(z.string(), z.string()),
  generation: z.number().int(),
  attempt: z.number().int(),
  steps: z.number().int(),
  maxSteps: z.number().int(),
  usage: usageSchema.describe("the job's own"),
  costUsd: z.number().nullable().describe("the job's own; null is unknown, which is not 0"),
  subtree: subtreeTotalsSchema.optional().describe('of the job and all its descendants'),
  partial: z.boolean(),
  error: z.string().optional(),
  createdAt: z.string(),
  startedAt: z.string().optional(),
  finishedAt: z.string().optional(),
})
export type AgentJobView = z.infer<typeof agentJobViewSchema>

export const listInputSchema = z.strictObject({
  state: jobStateSchema.optional(),
  live: z.stringbool().optional(),
  parentJobId: z.string().max(200).optional(),
  rootJobId: z.string().max(200).optional(),
  convoId: z.string().max(200).optional(),
  parentConvoId: z.string().max(200).optional().describe("the convo, often a host's, whose turn has spawned the job"),
  ownerId: z.string().max(200).optional(),
  cursor: z.string().max(200).optional(),
  limit: z.coerce.number().int().min(1).max(200).default(50),
})
export type ListInput = z.infer<typeof listInputSchema>

export const agentJobPageSchema = z.object({ jobs: z.array(agentJobViewSchema), nextCursor: z.string().optional() })
export type AgentJobPage = z.infer<typeof agentJobPageSchema>

/** A job of a tree: own usage, and that of itself and all its descendants. */
export const agentTreeJobSchema = agentJobViewSchema.extend({ subtree: subtreeTotalsSchema })
export const agentTreeSchema = z.object({ rootJobId: z.string(), jobs: z.array(agentTreeJobSchema) })
export type AgentTreeView = z.infer<typeof agentTreeSchema>
