// The one cap on what a model reads of tools and sub-agents. What is longer is shown as its head and tail, with its size
// and how to read the rest; the whole stays in Postgres, in a Blob or in the sub-agent's own row.
import type { JSONValue } from '@ai-sdk/provider'
import { z } from 'zod'
import { characterCount, headOf, tailOf } from './text.ts'

/**
 * UTF-16 units of text, or of JSON, that a model reads of one result: about 12,500 tokens at four characters a token, a
 * tenth of a context of 128,000.
 */
export const MAX_RESULT_LENGTH = 50_000
/** The tool that reads the rest; it is offered once something was truncated. */
export const READ_RESULT = 'readResult'

/** Kept free for the note between head and tail. */
const NOTE_LENGTH = 400
/** By these words it is seen that a text asks for `readResult`. */
const HINT = `Read on with ${READ_RESULT}({`

/** A tool's value that was too long: what stands in its place in the journal, the live stream and the message. */
export interface TruncatedResult {
  truncated: true
  /** What names the whole; absent where it is not kept, as for the value of a tool that still runs. */
  ref?: string
  /** Characters of the whole: of a text itself, of anything else as JSON. */
  characters: number
  head: string
  tail: string
  note: string
  /** What the tool's own `toModelOutput` made of the whole, where that is short enough. */
  forModel?: TextOutput
}

export interface TruncateOptions {
  ref?: string
  /** UTF-16 units that may be shown, the note included. */
  maxLength?: number
}

const textOutputSchema = z.union([
  z.strictObject({ type: z.enum(['text', 'error-text']), value: z.string() }),
  z.strictObject({ type: z.enum(['json', 'error-json']), value: z.custom<JSONValue>() }),
])
/** Of what a tool can say to a model, that which is text. */
export type TextOutput = z.infer<typeof textOutputSchema>

const truncatedSchema = z.strictObject({
  truncated: z.literal(true),
  ref: z.string().optional(),
  characters: z.number(),
  head: z.string(),
  tail: z.string(),
  note: z.string(),
  forModel: textOutputSchema.optional(),
})

/** Head and tail of a text; undefined when it is short enough to be shown whole. */
export function truncateResult(
  text: string,
  { ref, maxLength = MAX_RESULT_LENGTH }: TruncateOptions = {},
): TruncatedResult | undefined {
  if (text.length <= maxLength) return undefined
  const shown = Math.max(0, maxLength - NOTE_LENGTH)
  const head = headOf(text, Math.ceil(shown / 2))
  const tail = tailOf(text, Math.floor(shown / 2))
  const characters = characterCount(text)
  const offset = characterCount(head)
  const left = characters - offset - characterCount(tail)
  const readOn = ref === undefined ? '' : ` ${readOnHint(ref, offset)}`
  const note = `[${left} of ${characters} characters are left out here.${readOn}]`
  return { truncated: true, ...(ref === undefined ? {} : { ref }), characters, head, tail, note }
}

/** The same as one text: itself, or its head, the note and its tail. */
export function truncateText(text: string, options: TruncateOptions = {}): string {
  const truncated = truncateResult(text, options)
  return truncated === undefined ? text : textOfTruncated(truncated)
}

export function textOfTruncated({ head, note, tail }: TruncatedResult): string {
  return `${head}\n\n${note}\n\n${tail}`
}

export function isTruncatedResult(value: unknown): value is TruncatedResult {
  return typeof value === 'object' && value !== null && 'truncated' in value && truncatedSchema.safeParse(value).success
}

/** Says how to go on reading after `offset` characters. */
export function readOnHint(ref: string, offset: number): string {
  return `${HINT} "ref": "${ref}", "offset": ${offset} }).`
}

/** Whether a text that a model reads asks it to read on. */
export function asksToReadOn(text: string): boolean {
  return text.includes(HINT)
}
