// Budgets. A spawn may have one, in tokens or in money, which holds for its job and everything below it. A model call
// under a budget is reserved before it starts and settled when its output is stored, so that calls at the same time can
// overspend by no more than what is in flight: a call starts while spent + reserved < maximum, and reserves its estimate
// or what is left, whichever is less. Only a budget that is spent ends a job; one that is merely reserved makes it wait.
import type { AgentJob, Claim } from '../db/agent-jobs.ts'
import { type BudgetStand, readBudgets, type Spend, storeReservation } from '../db/budgets.ts'
import { refuse, type Refusal } from './prepare-spawn.ts'
import { lockTree, transact, type TransactRuntime, type Tx } from './transact.ts'

export type ReserveAnswer =
  | { kind: 'reserved' }
  /** Other calls have reserved what is left; they will give some of it back. */
  | { kind: 'busy' }
  | { kind: 'spent'; error: string }
  /** The claim is gone. */
  | { kind: 'lost' }

/** Reserves `estimate` for the next model call of a running job, in its own budget and those above it. */
export async function reserveBudget(
  runtime: TransactRuntime,
  job: Pick<AgentJob, 'id' | 'rootJobId' | 'ancestorIds'>,
  claim: Claim,
  estimate: Spend,
): Promise<ReserveAnswer> {
  return transact(runtime, async (tx) => {
    await lockTree(tx, job.rootJobId)
    const budgets = await readBudgets(tx.db, [job.id, ...job.ancestorIds], job.id)
    const spent = budgets.find(isSpent)
    if (spent !== undefined) return { kind: 'spent', error: describeSpent(spent, job.id) }
    const left = leastLeft(budgets)
    if (left.tokens <= 0n || left.costMicroUsd <= 0n) return { kind: 'busy' }
    const reservation = {
      tokens: least(estimate.tokens, left.tokens),
      costMicroUsd: least(estimate.costMicroUsd, left.costMicroUsd),
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

/** Whether a retried job could make no call, with the budget that it would have then. Called under the tree's lock. */
export async function findSpentBudget(
  tx: Tx,
  job: Pick<AgentJob, 'id' | 'ancestorIds'>,
  budget: AskedBudget,
): Promise<Refusal | undefined> {
  const budgets = await readBudgets(tx.db, [job.id, ...job.ancestorIds], job.id)
  const spent = budgets.map((each) => (each.jobId === job.id ? { ...each, ...budget } : each)).find(isSpent)
  return spent === undefined
    ? undefined
    : refuse('budget', `${describeSpent(spent, job.id)} Give a larger budget to the job that it belongs to.`)
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
