import { z } from 'zod'
import { budgetSchema } from './spawn.ts'

/** A larger limit is needed where the old one ended the job. */
export const retryInputSchema = z.strictObject({
  jobId: z.string().max(200),
  maxSteps: z.number().int().min(1).max(1_000).optional(),
  timeoutSeconds: z.number().min(1).max(86_400).optional(),
  budget: budgetSchema.optional(),
})
export type RetryInput = z.infer<typeof retryInputSchema>
