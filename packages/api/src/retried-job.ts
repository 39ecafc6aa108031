import type { AgentJob } from '@offshoot/shared/db/agent-jobs'
import type { RetryAnswer } from '@offshoot/shared/operations/retry-agent'
import { notFound, problem } from './problem.ts'

/** The job that goes on. @throws ProblemError that says why it does not */
export function retriedJob(answer: RetryAnswer): AgentJob {
  switch (answer.kind) {
    case 'not_found':
      throw notFound('job')
    case 'refused':
      throw problem(answer.refusal.reason, answer.refusal.error)
    case 'busy':
      throw problem('convo_busy', 'The convo has a live turn. Wait for its end, then retry.')
    case 'retried':
      return answer.job
  }
}
