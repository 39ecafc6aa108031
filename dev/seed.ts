import { type BotWrite, botWriteSchema } from '@offshoot/shared/contracts/bot'
import { type Database, openDatabase } from '@offshoot/shared/db/database'
import { putBot } from '@offshoot/shared/db/bots'
import { createApiKey } from '@offshoot/shared/db/users'

export type DemoApiKeys = { admin: string; alice: string; bob: string }

const SUB_AGENT_TOOLS = ['spawnAgent', 'checkAgent', 'abortAgent']
const MODEL_NAME = 'gpt-5-mini'

/** The bots of the group `forge`. Each may spawn sub-agents; the depth limit ends the chain. */
const FORGE: Record<string, { name: string; systemPrompt: string }> = {
  planner: {
    name: 'Planner',
    systemPrompt:
      'You split a task among sub-agents: researcher finds facts, writer writes texts, task-runner does long chores (all in group "forge"). ' +
      'Spawn in sync mode what you need now and in async mode what can run beside it. Check async sub-agents once, with waitSeconds, and abort those that you no longer need. Then answer.',
  },
  researcher: { name: 'Researcher', systemPrompt: 'You answer questions with short, well-founded facts.' },
  writer: {
    name: 'Writer',
    systemPrompt: 'You write short texts. When you lack facts, spawn forge/researcher for them and use its result.',
  },
  'task-runner': { name: 'Task runner', systemPrompt: 'You do exactly the chore that you are given, step by step.' },
}

/**
 * Puts the demo's users and bots into a migrated database and makes a new API key for each user. Users and bots that are
 * there already stay as they are; keys made earlier stay valid.
 */
export async function seedDemo(databaseUrl: string): Promise<{ apiKeys: DemoApiKeys }> {
  const database = openDatabase({ databaseUrl, poolSize: 1, applicationName: 'offshoot-seed' })
  try {
    await seedUsers(database)
    for (const [handle, bot] of Object.entries(FORGE)) await seedBot(database, handle, bot)
    return {
      apiKeys: {
        admin: await createApiKey(database, 'admin'),
        alice: await createApiKey(database, 'alice'),
        bob: await createApiKey(database, 'bob'),
      },
    }
  } finally {
    await database.$disconnect()
  }
}

async function seedUsers(database: Database): Promise<void> {
  await database.user.createMany({
    data: [
      { id: 'admin', name: 'Admin', admin: true },
      { id: 'alice', name: 'Alice' },
      { id: 'bob', name: 'Bob' },
    ],
    skipDuplicates: true,
  })
  await database.userDelegate.createMany({ data: [{ userId: 'alice', delegateUserId: 'bob' }], skipDuplicates: true })
}

async function seedBot(database: Database, handle: string, bot: { name: string; systemPrompt: string }): Promise<void> {
  const address = { group: 'forge', handle }
  if ((await database.bot.findUnique({ where: { group_handle: address } })) !== null) return
  const full: BotWrite = botWriteSchema.parse({
    ...bot,
    integration: 'openai',
    modelName: MODEL_NAME,
    toolNames: SUB_AGENT_TOOLS,
  })
  await putBot(database, address, full, null)
}
