import type { Bot as BotRow } from './generated/client.ts'
import { type Bot, type BotRef, type BotWrite, botSchema } from '../contracts/bot.ts'
import { grantOfJob, type ToolGrant } from '../contracts/tool-grant.ts'
import { newId } from '../ids.ts'
import { isUniqueViolation } from './database-errors.ts'
import type { AgentJob } from './agent-jobs.ts'
import { type Database, sql } from './database.ts'
import type { Statements } from './direct-sql.ts'
import { decodeStored, storable } from './stored-value.ts'

/** The bot, if `userId` may use it: its own, or one that belongs to everybody. */
export async function findBot(database: Database, ref: BotRef, userId: string): Promise<Bot | undefined> {
  const row = await database.bot.findFirst({
    where: {
      ...('botId' in ref ? { id: ref.botId } : { group: ref.botGroup, handle: ref.botHandle }),
      OR: [{ ownerId: null }, { ownerId: userId }],
    },
  })
  return row === null ? undefined : toBot(row)
}

export interface BotLookup {
  ref: BotRef
  userId: string
}

/** `findBot` for many at once: those that spawn at the same time mostly spawn the same. */
export async function findBotsTogether(
  db: Statements,
  lookups: readonly BotLookup[],
): Promise<{ bot: Bot | undefined }[]> {
  // An id may look like an address.
  const keyOf = ({ ref }: BotLookup) => ('botId' in ref ? `id ${ref.botId}` : `at ${ref.botGroup}/${ref.botHandle}`)
  const ids = new Set(lookups.flatMap(({ ref }) => ('botId' in ref ? [ref.botId] : [])))
  const addresses = new Map(lookups.flatMap((each) => ('botId' in each.ref ? [] : [[keyOf(each), each.ref] as const])))
  const rows = await db.$queryRaw<BotRow[]>(sql`
    select * from "offshoot"."Bot" where "id" = any(${[...ids]}::text[])
    union all
    select bot.* from unnest(
      ${[...addresses.values()].map((ref) => ref.botGroup)}::text[], ${[...addresses.values()].map((ref) => ref.botHandle)}::text[]
    ) ref ("group", "handle") join "offshoot"."Bot" bot on bot."group" = ref."group" and bot."handle" = ref."handle"`)
  const found = new Map<string, BotRow>(
    rows.flatMap((row) => [[`id ${row.id}`, row] as const, [`at ${row.group}/${row.handle}`, row] as const]),
  )
  return lookups.map((lookup) => {
    const row = found.get(keyOf(lookup))
    const usable = row !== undefined && (row.ownerId === null || row.ownerId === lookup.userId)
    return { bot: usable ? toBot(row) : undefined }
  })
}

export async function findBotAlone(database: Database, { ref, userId }: BotLookup): Promise<{ bot: Bot | undefined }> {
  return { bot: await findBot(database, ref, userId) }
}

export async function listBots(database: Database, userId: string): Promise<Bot[]> {
  const rows = await database.bot.findMany({
    where: { OR: [{ ownerId: null }, { ownerId: userId }] },
    orderBy: [{ group: 'asc' }, { handle: 'asc' }],
    take: 1_000,
  })
  return rows.map(toBot)
}

/** Writes a bot at its address. A new one gets `ownerId`; an existing one keeps its owner and gets the next version. */
export async function putBot(
  database: Database,
  address: { group: string; handle: string },
  bot: BotWrite,
  ownerId: string | null,
): Promise<Bot> {
  const fields = botFields(storable(bot))
  const row = await database.bot.upsert({
    where: { group_handle: address },
    create: { id: newId(), ...address, ...fields, ownerId },
    update: { ...fields, version: { increment: 1 } },
  })
  return toBot(row)
}

/**
 * The same for `writer`: an admin makes bots for everybody and overwrites any, a user makes and overwrites its own.
 * @returns undefined when the bot there is not the writer's to overwrite: nothing was written
 */
export async function putBotAs(
  database: Database,
  address: { group: string; handle: string },
  bot: BotWrite,
  writer: { userId: string; admin: boolean },
): Promise<{ bot: Bot; created: boolean } | undefined> {
  const fields = botFields(storable(bot))
  try {
    const row = await database.bot.create({
      data: { id: newId(), ...address, ...fields, ownerId: writer.admin ? null : writer.userId },
    })
    return { bot: toBot(row), created: true }
  } catch (error) {
    if (!isUniqueViolation(error)) throw error
  }
  const [row] = await database.bot.updateManyAndReturn({
    where: { ...address, ...(writer.admin ? {} : { ownerId: writer.userId }) },
    data: { ...fields, version: { increment: 1 } },
  })
  return row === undefined ? undefined : { bot: toBot(row), created: false }
}

function botFields(bot: BotWrite) {
  return {
    name: bot.name,
    integration: bot.integration,
    modelName: bot.modelName,
    systemPrompt: bot.systemPrompt,
    childPrompts: bot.childPrompts ?? {},
    temperature: bot.temperature ?? null,
    reasoningEffort: bot.reasoningEffort ?? null,
    verbosity: bot.verbosity ?? null,
    serviceTier: bot.serviceTier ?? null,
    storeResponses: bot.storeResponses,
    toolNames: bot.toolNames,
    mcpServers: bot.mcpServers.map((server) => ({ ...server })),
    layers: bot.layers,
    runner: bot.runner ?? null,
    lane: bot.lane,
  }
}

/** The bot as it was when the job was spawned. */
export function botOfJob(job: Pick<AgentJob, 'botSnapshot'>): Bot {
  return toBot(Object(decodeStored(job.botSnapshot)))
}

/** The tools that a job may use, and its children with it. */
export function toolsOfJob(job: Pick<AgentJob, 'botSnapshot' | 'toolNames'>): ToolGrant {
  return grantOfJob(botOfJob(job), job.toolNames)
}

export function toBot(row: BotRow | object): Bot {
  const present = Object.fromEntries(
    Object.entries(row).filter(([name, value]) => name in botSchema.shape && (value !== null || name === 'ownerId')),
  )
  return botSchema.parse(present)
}
