// What a job and its sub-agents have used. docs/guide/usage.md explains it.
import type { Offshoot } from '@offshoot/shared'

/** A cost that is not known is null, never 0. */
const dollars = (cost: number | null | undefined) => (typeof cost === 'number' ? `$${cost}` : 'unknown')

export async function describeCost(offshoot: Offshoot, userId: string, jobId: string): Promise<string> {
  const { usage, costUsd, subtree } = await offshoot.check(userId, { jobId })
  if (usage === undefined || subtree === undefined) return 'There is no such job.'
  const estimated = subtree.usage.estimatedTokens ?? 0
  return [
    `itself: ${usage.totalTokens ?? 'unknown'} tokens, ${dollars(costUsd)}`,
    `all ${subtree.jobs} jobs: ${subtree.usage.totalTokens ?? 'unknown'} tokens, ${dollars(subtree.costUsd)}`,
    ...(estimated === 0 ? [] : [`of which ${estimated} tokens are an estimate`]),
  ].join('\n')
}
