// The budget of a run's model calls: each is reserved before it starts (operations/budget.ts says how).
import type { LanguageModelV4CallOptions } from '@ai-sdk/provider'
import { costMicroUsd, type ModelPrice } from '@offshoot/shared/contracts/price'
import { reserveBudget } from '@offshoot/shared/operations/budget'
import type { Attempt } from './run-agent.ts'
import { untilPostgresAnswers } from './persist.ts'

/** The budget is spent: the job ends with what it has. */
export class BudgetSpentError extends Error {
  override name = 'BudgetSpentError'
}

/** Others have reserved what is left of the budget: the job waits, holding nothing, until they have settled. */
export class BudgetBusyError extends Error {
  override name = 'BudgetBusyError'
  readonly afterMs = 1_000
}

/** What a call may write when the request does not say. */
const ASSUMED_OUTPUT_TOKENS = 4_096
/** English text has about four characters a token; the estimate only has to be near. */
const CHARACTERS_A_TOKEN = 4

/** @throws BudgetSpentError | BudgetBusyError */
export async function reserveForCall(
  { runtime, job, claim, stopSwitch }: Attempt,
  price: ModelPrice | undefined,
  { prompt, tools, maxOutputTokens }: LanguageModelV4CallOptions,
): Promise<void> {
  if (!job.budgeted) return
  const characters = JSON.stringify(prompt).length + (tools === undefined ? 0 : JSON.stringify(tools).length)
  const inputTokens = Math.ceil(characters / CHARACTERS_A_TOKEN)
  const outputTokens = maxOutputTokens ?? ASSUMED_OUTPUT_TOKENS
  const cost = costMicroUsd(price, { inputTokens, outputTokens })
  const estimate = {
    tokens: BigInt(inputTokens + outputTokens),
    costMicroUsd: cost === null ? null : BigInt(cost),
  }
  const answer = await untilPostgresAnswers(() => reserveBudget(runtime, job, claim, estimate), {
    stopSwitch,
    logger: runtime.logger,
    jobId: job.id,
  })
  switch (answer.kind) {
    case 'reserved':
      return
    case 'busy':
      throw new BudgetBusyError('other calls have reserved what is left of the budget')
    case 'spent':
      throw new BudgetSpentError(answer.error)
    case 'lost':
      stopSwitch.stop({ kind: 'claim-lost', because: 'a reservation found another claim' })
      stopSwitch.signal.throwIfAborted()
  }
}
