// Bots over HTTP. A bot of somebody else is not found; what a bot was told is shown to those who may change it. MCP servers
// are for admins: a worker connects to them from inside, with what their headers say.
import { type Bot, botLabel, botSchema, botWriteSchema } from '@offshoot/shared/contracts/bot'
import { listBots, putBotAs, toBot } from '@offshoot/shared/db/bots'
import type { Runtime } from '@offshoot/shared/runtime'
import { type Request, Router } from 'express'
import { z } from 'zod'
import { type Caller, callerOf } from '../auth.ts'
import type { botViewSchema } from '../contracts.ts'
import { describeIssues, notFound, problem } from '../problem.ts'
import { readBody, readId } from '../read-request.ts'

const addressSchema = z.object({ group: botSchema.shape.group, handle: botSchema.shape.handle })

export function botRoutes({ database }: Pick<Runtime, 'database'>): Router {
  const router = Router()

  router.get('/', async (request, response) => {
    const caller = callerOf(request)
    response.json({ bots: (await listBots(database, caller.userId)).map((bot) => toView(bot, caller)) })
  })

  router.get('/:group/:handle', async (request, response) => {
    const caller = callerOf(request)
    const row = await database.bot.findUnique({
      where: { group_handle: { group: readId(request, 'group', 'bot'), handle: readId(request, 'handle', 'bot') } },
    })
    if (row === null || !mayUse(row, caller)) throw notFound('bot')
    response.json(toView(toBot(row), caller))
  })

  router.put('/:group/:handle', async (request, response) => {
    const caller = callerOf(request)
    const address = readAddress(request)
    const write = readBody(botWriteSchema, request)
    if (write.mcpServers.length > 0 && !caller.admin)
      throw problem('not_authorized', 'Only an admin may give a bot mcpServers. Leave them out, or ask an admin.')
    const written = await putBotAs(database, address, write, caller)
    if (written === undefined) {
      const present = await database.bot.findUnique({ where: { group_handle: address } })
      if (present === null || !mayUse(present, caller)) throw notFound('bot')
      throw problem(
        'not_authorized',
        `${botLabel(present)} belongs to everybody; only an admin may change it. Choose another address for a bot of your own.`,
      )
    }
    response.status(written.created ? 201 : 200).json(toView(written.bot, caller))
  })

  return router
}

function mayUse(bot: { ownerId: string | null }, caller: Caller): boolean {
  return bot.ownerId === null || mayChange(bot, caller)
}

function mayChange(bot: { ownerId: string | null }, caller: Caller): boolean {
  return caller.admin || bot.ownerId === caller.userId
}

function toView(bot: Bot, caller: Caller): z.infer<typeof botViewSchema> {
  if (caller.admin) return bot
  const { mcpServers: _mcpServers, ...own } = bot
  if (mayChange(bot, caller)) return own
  const { systemPrompt: _systemPrompt, childPrompts: _childPrompts, ...view } = own
  return view
}

function readAddress(request: Request): { group: string; handle: string } {
  const parsed = addressSchema.safeParse(request.params)
  if (parsed.success) return parsed.data
  throw problem('invalid_request', describeIssues('body', parsed.error).detail.replace('The body', "The bot's address"))
}
