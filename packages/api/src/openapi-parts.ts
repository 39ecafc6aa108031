// Pieces that the operations of the OpenAPI document share.
import { z } from 'zod'
import type { ZodOpenApiResponsesObject } from 'zod-openapi'
import * as contracts from './contracts.ts'

export const json = (schema: z.ZodType) => ({ content: { 'application/json': { schema } } })
export const answer = (description: string, schema: z.ZodType) => ({ description, ...json(schema) })
export const refusal = (description: string) => ({
  description,
  content: { 'application/problem+json': { schema: contracts.problemSchema } },
})
export const eventStream = {
  description:
    "Server-sent events: the AI SDK's UI message stream, to the job's end. Each event's id is the cursor after it.",
  headers: z.object({ 'x-vercel-ai-ui-message-stream': z.literal('v1'), 'x-agent-job-id': z.string() }),
  content: { 'text/event-stream': { schema: z.string() } },
}

export const unauthorized = { 401: refusal('No valid API key.') }
export const ofOne = (what: string): ZodOpenApiResponsesObject => ({
  ...unauthorized,
  404: refusal(`There is no such ${what}, or it is not the caller's: the same answer for both.`),
})
export const ofBody = (): ZodOpenApiResponsesObject => ({
  ...unauthorized,
  400: refusal('The request is not valid.'),
  413: refusal('The body has more than 1 MB.'),
  415: refusal('The body is not JSON.'),
})
