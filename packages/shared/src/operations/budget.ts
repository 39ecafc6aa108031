// Budgets. A spawn may have one, in tokens or in money, which holds for its job and everything below it. A model call
// under a budget is reserved before it starts and settled when its output is stored, so that calls at the same time can
// overspend by no more than what is in flight: a call starts while spent + reserved < maximum, and reserves its estimate
// or what is left, whichever is less. Only a budget that is spent ends a job; one that is merely reserved makes it wait.
import type { AgentJob, Claim } from '../db/agent-jobs.ts'
import { type BudgetStand, readBudgets, readSpend, type Spend, storeReservation } from '../db/budgets.ts'
import { refuse, type Refusal } from './prepare-spawn.ts'
import { lockTree, transact, type TransactRuntime, type Tx } from './transact.ts'

export type ReserveAnswer =
  | { kind: 'reserved' }
  /** Other calls have reserved what is left; they will give some of it back. */
  | { kind: 'busy' }
  | { kind: 'spent'; error: string }
  /** The claim is gone. */
  | { kind: 'lost' }

/**
 * Reserves `estimate` for the next model call of a running job, in its own budget and those above it. A cost that is null
 * is not known, and no budget in money lets such a call start.
 */
export async function reserveBudget(
  runtime: TransactRuntime,
  job: Pick<AgentJob, 'id' | 'rootJobId' | 'ancestorIds'>,
  claim: Claim,
  estimate: { tokens: bigint; costMicroUsd: bigint | null },
): Promise<ReserveAnswer> {
  return transact(runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    const budgets = await readBudgets(tx.db, [job.id, ...job.ancestorIds], job.id)
    const spent = budgets.find(isSpent)
    if (spent !== undefined) return { kind: 'spent', error: describeSpent(spent, job.id) }
    if (estimate.costMicroUsd === null && budgets.some((budget) => budget.maxCostMicroUsd !== null))
      return {
        kind: 'spent',
        error: 'The price of its model is not known here, so its budget in money cannot be kept.',
      }
    const left = leastLeft(budgets)
    if (left.tokens <= 0n || left.costMicroUsd <= 0n) return { kind: 'busy' }
    const reservation = {
      tokens: least(estimate.tokens, left.tokens),
      costMicroUsd: least(estimate.costMicroUsd ?? 0n, left.costMicroUsd),
    }
    return (await storeReservation(tx.db, claim, reservation)) ? { kind: 'reserved' } : { kind: 'lost' }
  })
}

export interface AskedBudget {
  maxTotalTokens: bigint | null
  maxCostMicroUsd: bigint | null
}

/** Whether a job may spawn under the budgets above it, and with the budget it asks for. Called under the tree's lock. */
export async function checkBudgets(
  tx: Tx,
  parent: { jobId: string; ancestorIds: readonly string[] },
  asked: AskedBudget,
): Promise<Refusal | { budgeted: boolean; /** One of them is in money. */ inMoney: boolean }> {
  const budgets = await readBudgets(tx.db, [parent.jobId, ...parent.ancestorIds], null)
  const spent = budgets.find(isSpent)
  if (spent !== undefined) return refuse('budget', `${describeSpent(spent, parent.jobId)} Finish with what you have.`)
  const left = leastLeft(budgets)
  if (asked.maxTotalTokens !== null && asked.maxTotalTokens > left.tokens) {
    return refuse(
      'budget',
      `budget.maxTotalTokens ${asked.maxTotalTokens} is more than the ${atLeastZero(left.tokens)} tokens that are left above it. Ask for less, or leave it out to share what is left.`,
    )
  }
  if (asked.maxCostMicroUsd !== null && asked.maxCostMicroUsd > left.costMicroUsd) {
    return refuse(
      'budget',
      `budget.maxCostUsd ${usd(asked.maxCostMicroUsd)} is more than the ${usd(atLeastZero(left.costMicroUsd))} US dollars that are left above it. Ask for less, or leave it out to share what is left.`,
    )
  }
  return { budgeted: budgets.length > 0, inMoney: budgets.some((budget) => budget.maxCostMicroUsd !== null) }
}

/**
 * Why a retried job may not have the budget that is asked for it, if it may not: it could make no call with it, or it is
 * more than the budgets above leave it. Called under the tree's lock.
 */
export async function refuseRetriedBudget(
  tx: Tx,
  job: Pick<AgentJob, 'id' | 'ancestorIds' | 'maxTotalTokens' | 'maxCostMicroUsd'>,
  asked: AskedBudget,
): Promise<Refusal | undefined> {
  const budgets = await readBudgets(tx.db, [job.id, ...job.ancestorIds], job.id)
  const known = {
    ...(asked.maxTotalTokens === null ? {} : { maxTotalTokens: asked.maxTotalTokens }),
    ...(asked.maxCostMicroUsd === null ? {} : { maxCostMicroUsd: asked.maxCostMicroUsd }),
  }
  const spent = budgets.map((each) => (each.jobId === job.id ? { ...each, ...known } : each)).find(isSpent)
  if (spent !== undefined)
    return refuse('budget', `${describeSpent(spent, job.id)} Give a larger budget to the job that it belongs to.`)
  const left = leastLeft(budgets.filter((each) => each.jobId !== job.id))
  const own = await readSpend(tx.db, job.id)
  const most = { tokens: own.tokens + left.tokens, costMicroUsd: own.costMicroUsd + left.costMicroUsd }
  if (asked.maxTotalTokens !== null && asked.maxTotalTokens > most.tokens)
    return refuse(
      'budget',
      `budget.maxTotalTokens ${asked.maxTotalTokens} is more than the ${atLeastZero(most.tokens)} tokens that the budgets above allow the job in all. Ask for less, or leave it out.`,
    )
  if (asked.maxCostMicroUsd !== null && asked.maxCostMicroUsd > most.costMicroUsd)
    return refuse(
      'budget',
      `budget.maxCostUsd ${usd(asked.maxCostMicroUsd)} is more than the ${usd(atLeastZero(most.costMicroUsd))} US dollars that the budgets above allow the job in all. Ask for less, or leave it out.`,
    )
  return undefined
}

export function refuseUnknownPrice(model: string): Refusal {
  return refuse(
    'budget',
    `The price of ${model} is not known, so a budget in money cannot be kept. Add the model to \`prices\` in the config module, or use another one.`,
  )
}

/** Tokens as the row has them. */
export function toTokens(tokens: number | undefined): bigint | null {
  return tokens === undefined ? null : BigInt(tokens)
}

/** US dollars as the row has them: whole micro-dollars. */
export function toMicroUsd(costUsd: number | undefined): bigint | null {
  return costUsd === undefined ? null : BigInt(Math.round(costUsd * 1_000_000))
}

/** More than any budget: what is left where there is no limit. */
const UNLIMITED = 2n ** 62n

function leastLeft(budgets: readonly BudgetStand[]): Spend {
  return budgets.reduce<Spend>(
    (left, { maxTotalTokens, maxCostMicroUsd, spent, reserved }) => ({
      tokens: least(left.tokens, (maxTotalTokens ?? UNLIMITED) - spent.tokens - reserved.tokens),
      costMicroUsd: least(
        left.costMicroUsd,
        (maxCostMicroUsd ?? UNLIMITED) - spent.costMicroUsd - reserved.costMicroUsd,
      ),
    }),
    { tokens: UNLIMITED, costMicroUsd: UNLIMITED },
  )
}

function isSpent({ maxTotalTokens, maxCostMicroUsd, spent }: BudgetStand): boolean {
  return (
    (maxTotalTokens !== null && spent.tokens >= maxTotalTokens) ||
    (maxCostMicroUsd !== null && spent.costMicroUsd >= maxCostMicroUsd)
  )
}

function describeSpent({ jobId, maxTotalTokens, maxCostMicroUsd, spent }: BudgetStand, askingJobId: string): string {
  const whose = jobId === askingJobId ? 'The budget of this job' : `The budget of job ${jobId}, above this one,`
  return maxTotalTokens !== null && spent.tokens >= maxTotalTokens
    ? `${whose} is spent: ${spent.tokens} of ${maxTotalTokens} tokens.`
    : `${whose} is spent: ${usd(spent.costMicroUsd)} of ${usd(maxCostMicroUsd ?? 0n)} US dollars.`
}

function usd(microUsd: bigint): number {
  return Number(microUsd) / 1_000_000
}

function least(a: bigint, b: bigint): bigint {
  return a < b ? a : b
}

function atLeastZero(value: bigint): bigint {
  return value < 0n ? 0n : value
}
