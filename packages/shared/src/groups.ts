// What every job does, done for many jobs at once: group commits (docs/decisions/0026).
import type { Config } from './config.ts'
import { type ClaimedJob, claimJob, claimJobs, type NewClaim } from './db/agent-jobs.ts'
import { type BotLookup, findBotAlone, findBotsTogether } from './db/bots.ts'
import { createGroupCommit } from './db/group-commit.ts'
import { type OutputAnswer, type OutputToStore, storeModelOutput, storeModelOutputs } from './db/journal.ts'
import type { Bot } from './contracts/bot.ts'
import { type CommonEnd, endTogether } from './operations/end-together.ts'
import type { PreparedSpawn } from './operations/prepare-spawn.ts'
import { type SpawnAnswer, spawnAlone, spawnTogether } from './operations/spawn-agent.ts'
import type { TransactRuntime } from './operations/transact.ts'

export interface Groups {
  claim(claim: NewClaim): Promise<ClaimedJob | null>
  storeOutput(output: OutputToStore): Promise<OutputAnswer>
  /** Null: this end is none of the common ones, or the claim is gone: nothing was written (finish-agent.ts). */
  end(end: CommonEnd): Promise<{ steps: number } | null>
  spawn(prepared: PreparedSpawn): Promise<SpawnAnswer>
  findBot(lookup: BotLookup): Promise<{ bot: Bot | undefined }>
}

export function openGroups(runtime: TransactRuntime & { config: Config }): Groups {
  const { database } = runtime
  const { direct } = database
  return {
    claim: createGroupCommit({
      writeGroup: (claims: readonly NewClaim[]) => claimJobs(direct, claims),
      writeAlone: (claim) => claimJob(direct, claim),
      // Beginning a run takes about a millisecond: more of them at once would hold up those that run.
      maxGroup: 50,
    }),
    storeOutput: createGroupCommit({
      writeGroup: (outputs: readonly OutputToStore[]) => storeModelOutputs(direct, outputs),
      writeAlone: ({ claim, output }) => storeModelOutput(direct, claim, output),
    }),
    end: createGroupCommit({
      writeGroup: (ends: readonly CommonEnd[]) => endTogether(runtime, ends),
      writeAlone: async () => null,
    }),
    spawn: createGroupCommit({
      writeGroup: (spawns: readonly PreparedSpawn[]) => spawnTogether(runtime, spawns),
      writeAlone: (prepared) => spawnAlone(runtime, prepared),
    }),
    findBot: createGroupCommit({
      writeGroup: (lookups: readonly BotLookup[]) => findBotsTogether(direct, lookups),
      writeAlone: (lookup) => findBotAlone(database, lookup),
    }),
  }
}
