// Why a job ended or a request was refused: one closed list, and for each code what follows from it.
import { z } from 'zod'
import type { TerminalState } from './job-state.ts'

export const REASON_CODES = [
  'completed',
  'step_limit',
  'timeout_queue',
  'timeout_first_chunk',
  'timeout_chunk',
  'timeout_step',
  'timeout_total',
  'aborted_by_user',
  'aborted_by_parent',
  'aborted_by_shutdown',
  'depth_limit',
  'cap',
  'budget',
  'not_authorized',
  'unknown_bot',
  'unknown_tool',
  'invalid_request',
  'invalid_tool_input',
  'model_auth',
  'model_rate_limited',
  'model_unavailable',
  'model_refused',
  'context_overflow',
  'output_limit',
  'content_filter',
  'empty_output',
  'upstream_disconnect',
  'worker_lost',
  'worker_crash',
  'internal',
] as const
export const reasonSchema = z.enum(REASON_CODES)
export type Reason = z.infer<typeof reasonSchema>

export interface ReasonFacts {
  /** `step`: the failed step may be tried again while nothing of it has reached anyone. `never`: trying again cannot help or would pay twice. */
  retry: 'never' | 'step'
  /** The status of a problem+json answer with this code. */
  httpStatus: number
  /** What a job with this reason becomes. */
  state: TerminalState
  /** What a user may read when nothing more precise is known. */
  sentence: string
}

export const REASONS: Readonly<Record<Reason, ReasonFacts>> = {
  completed: { retry: 'never', httpStatus: 200, state: 'completed', sentence: 'The agent completed.' },
  step_limit: {
    retry: 'never',
    httpStatus: 200,
    state: 'completed',
    sentence: 'The agent used all the steps that it was allowed.',
  },
  timeout_queue: {
    retry: 'never',
    httpStatus: 504,
    state: 'failed',
    sentence: 'No worker took the job within its queue-time limit.',
  },
  timeout_first_chunk: {
    retry: 'step',
    httpStatus: 504,
    state: 'failed',
    sentence: 'The model sent no output in time.',
  },
  timeout_chunk: {
    retry: 'never',
    httpStatus: 504,
    state: 'failed',
    sentence: 'The model fell silent in the middle of its output.',
  },
  timeout_step: { retry: 'never', httpStatus: 504, state: 'failed', sentence: 'One step took longer than its limit.' },
  timeout_total: {
    retry: 'never',
    httpStatus: 504,
    state: 'failed',
    sentence: 'The job reached its total time limit.',
  },
  aborted_by_user: { retry: 'never', httpStatus: 409, state: 'aborted', sentence: 'The job was aborted.' },
  aborted_by_parent: {
    retry: 'never',
    httpStatus: 409,
    state: 'aborted',
    sentence: 'The job was aborted because its parent ended.',
  },
  aborted_by_shutdown: {
    retry: 'never',
    httpStatus: 409,
    state: 'aborted',
    sentence: 'The job was aborted by a shutdown.',
  },
  depth_limit: { retry: 'never', httpStatus: 422, state: 'failed', sentence: 'Sub-agents may not be nested deeper.' },
  cap: { retry: 'never', httpStatus: 429, state: 'failed', sentence: 'A limit on the number of jobs is reached.' },
  budget: { retry: 'never', httpStatus: 402, state: 'failed', sentence: 'The budget of this tree is spent.' },
  not_authorized: { retry: 'never', httpStatus: 403, state: 'failed', sentence: 'Not authorized.' },
  unknown_bot: { retry: 'never', httpStatus: 404, state: 'failed', sentence: 'The bot does not exist.' },
  unknown_tool: { retry: 'never', httpStatus: 400, state: 'failed', sentence: 'A tool does not exist.' },
  invalid_request: { retry: 'never', httpStatus: 400, state: 'failed', sentence: 'The request is not valid.' },
  invalid_tool_input: {
    retry: 'never',
    httpStatus: 400,
    state: 'failed',
    sentence: 'The model kept calling tools with invalid input.',
  },
  model_auth: {
    retry: 'never',
    httpStatus: 502,
    state: 'failed',
    sentence: 'The model provider refused our credentials.',
  },
  model_rate_limited: {
    retry: 'step',
    httpStatus: 503,
    state: 'failed',
    sentence: 'The model provider limits our rate.',
  },
  model_unavailable: {
    retry: 'step',
    httpStatus: 503,
    state: 'failed',
    sentence: 'The model provider is not available.',
  },
  model_refused: {
    retry: 'never',
    httpStatus: 502,
    state: 'failed',
    sentence: 'The model provider refused the request.',
  },
  context_overflow: {
    retry: 'never',
    httpStatus: 422,
    state: 'failed',
    sentence: 'The conversation no longer fits into the context of the model.',
  },
  output_limit: { retry: 'never', httpStatus: 200, state: 'failed', sentence: 'The model reached its output limit.' },
  content_filter: {
    retry: 'never',
    httpStatus: 200,
    state: 'failed',
    sentence: 'The model provider filtered the content.',
  },
  empty_output: { retry: 'never', httpStatus: 200, state: 'failed', sentence: 'The model ended without a text.' },
  upstream_disconnect: {
    retry: 'step',
    httpStatus: 502,
    state: 'failed',
    sentence: 'The connection to the model provider broke.',
  },
  worker_lost: { retry: 'never', httpStatus: 500, state: 'failed', sentence: 'The process that ran the job was lost.' },
  worker_crash: {
    retry: 'never',
    httpStatus: 500,
    state: 'failed',
    sentence: 'The job ended its worker too often and is quarantined.',
  },
  internal: { retry: 'never', httpStatus: 500, state: 'failed', sentence: 'Something went wrong inside Offshoot.' },
}
