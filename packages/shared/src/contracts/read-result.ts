import { z } from 'zod'

/** Characters that `readResult` gives at a time. */
export const MAX_READ_LENGTH = 20_000

export const readResultInputSchema = z.strictObject({
  ref: z.string().max(200).describe('as the shown part names it'),
  offset: z.number().int().min(0).max(1_000_000_000).default(0).describe('characters to skip'),
  length: z
    .number()
    .int()
    .min(1)
    .max(MAX_READ_LENGTH)
    .default(MAX_READ_LENGTH)
    .describe(`characters to read, at most ${MAX_READ_LENGTH}`),
})
export type ReadResultInput = z.infer<typeof readResultInputSchema>

/** A part of a result that is too long to be shown whole. Counts are in characters (code points). */
export const resultPageSchema = z.object({
  ref: z.string(),
  characters: z.number().int().describe('of the whole'),
  offset: z.number().int(),
  text: z.string(),
  nextOffset: z.number().int().optional().describe('where the next page begins; absent at the end'),
})
export type ResultPage = z.infer<typeof resultPageSchema>

export type ReadResultOutput = ResultPage | { ref: string; error: string }

/** The same answer for a result that does not exist and for one that is not the caller's. */
export function resultNotFound(ref: string): { ref: string; error: string } {
  return { ref, error: `There is no result "${ref}". Give the ref as the shown part names it.` }
}
