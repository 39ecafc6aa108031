// What a program may set about how long, how wide and how much a tree of sub-agents may be. docs/guide/limits.md explains it.
import type { Offshoot } from '@offshoot/shared'
import type { SpawnContext } from '@offshoot/shared/spawn-context'

const researcher = { botGroup: 'forge', botHandle: 'researcher' }

export async function withinLimits(offshoot: Offshoot, caller: SpawnContext, question: string) {
  return offshoot.run(caller, {
    bot: researcher,
    message: question,
    timeoutSeconds: 120,
    overrides: { maxSteps: 5 },
    budget: { maxTotalTokens: 50_000 },
  })
}
