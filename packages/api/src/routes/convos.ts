// Convos over HTTP: a chat app's `useChat` talks to these routes.
import { botLabel, describeBotRef } from '@offshoot/shared/contracts/bot'
import { MAX_MESSAGE_LENGTH } from '@offshoot/shared/contracts/spawn'
import { characterCount } from '@offshoot/shared/contracts/text'
import { findBot } from '@offshoot/shared/db/bots'
import { findLiveTurn, toUiMessage } from '@offshoot/shared/db/convos'
import { newId } from '@offshoot/shared/ids'
import { startTurn, type TurnRequest } from '@offshoot/shared/operations/start-turn'
import type { Runtime } from '@offshoot/shared/runtime'
import { type Request, type Response, Router } from 'express'
import type { z } from 'zod'
import { callerOf } from '../auth.ts'
import { chatBodySchema, createConvoSchema, messagesQuerySchema, userMessageSchema } from '../contracts.ts'
import { streamJob } from '../live-routes.ts'
import type { OpenRequests } from '../open-requests.ts'
import { describeIssues, notFound, problem } from '../problem.ts'
import { readBody, readId, readQuery, readTraceparent } from '../read-request.ts'

export function convoRoutes(runtime: Runtime, openRequests: OpenRequests): Router {
  const { database } = runtime
  const router = Router()

  router.post('/', async (request, response) => {
    const { bot: ref } = readBody(createConvoSchema, request)
    const { userId } = callerOf(request)
    const bot = (await runtime.extensions.resolveBot(ref, { userId })) ?? (await findBot(database, ref, userId))
    if (bot === undefined) throw problem('unknown_bot', `Bot not found: ${describeBotRef(ref)}.`)
    const convo = await database.convo.create({
      data: { id: newId(), botId: bot.id, botLabel: botLabel(bot), ownerId: userId },
    })
    response.status(201).location(`/v1/convos/${convo.id}/messages`).json({
      convoId: convo.id,
      bot: convo.botLabel,
      botId: convo.botId,
      ownerId: convo.ownerId,
      createdAt: convo.createdAt.toISOString(),
    })
  })

  router.get('/:convoId/messages', async (request, response) => {
    const { cursor, limit } = readQuery(messagesQuerySchema, request)
    const convoId = await readConvo(runtime, request)
    const rows = await database.aiMessage.findMany({
      where: { convoId, ...(cursor === undefined ? {} : { seq: { lt: Number(cursor) } }) },
      orderBy: { seq: 'desc' },
      take: limit + 1,
    })
    const page = rows.slice(0, limit).toReversed()
    const oldest = page[0]
    const more = rows.length > limit && oldest !== undefined
    response.json({ convoId, messages: page.map(toUiMessage), ...(more ? { nextCursor: String(oldest.seq) } : {}) })
  })

  router.post('/:convoId/messages', async (request, response) => {
    const convoId = readId(request, 'convoId', 'convo')
    const body = readBody(chatBodySchema, request)
    const { userId, onBehalf } = callerOf(request)
    const answer = await startTurn(runtime, {
      ...readTurn(body),
      convoId,
      userId,
      ...(onBehalf ? { withoutAdminRights: true } : {}),
      ...readTraceparent(request),
    })
    switch (answer.kind) {
      case 'not_found':
        throw notFound('convo')
      case 'refused':
        throw problem(answer.refusal.reason, answer.refusal.error, {
          extensions: { reason: answer.refusal.reason, error: answer.refusal.error },
        })
      case 'busy':
        throw problem(
          'convo_busy',
          'The convo has a live turn. Wait for its end, or send the message with ifBusy: "steer".',
          { extensions: { jobId: answer.jobId } },
        )
      default:
    }
    await streamTurn(request, response, answer.jobId)
  })

  router.get('/:convoId/stream', async (request, response) => {
    const live = await findLiveTurn(database, await readConvo(runtime, request))
    if (live === undefined) response.status(204).end()
    else await streamTurn(request, response, live.id)
  })

  async function streamTurn(request: Request, response: Response, jobId: string): Promise<void> {
    const job = await database.agentJob.findUnique({
      where: { id: jobId },
      select: { id: true, convoId: true, inputSeq: true },
    })
    if (job === null) throw notFound('job')
    await streamJob({ runtime, openRequests }, request, response, job)
  }

  return router
}

/** The convo's id, if it is the caller's own, or the caller is admin. */
async function readConvo({ database }: Runtime, request: Request): Promise<string> {
  const id = readId(request, 'convoId', 'convo')
  const { userId, admin } = callerOf(request)
  const convo = await database.convo.findFirst({
    where: { id, ...(admin ? {} : { ownerId: userId }) },
    select: { id: true },
  })
  if (convo === null) throw notFound('convo')
  return convo.id
}

/** What the chat body asks for: to answer its last user message, or to answer the stored last one again. */
function readTurn(body: z.infer<typeof chatBodySchema>): Pick<TurnRequest, 'message' | 'ifBusy' | 'regenerate'> {
  if (body.trigger === 'regenerate-message')
    return { message: { text: '', parts: [] }, ifBusy: 'reject', regenerate: true }
  const last = body.messages.findLast((message) => message.role === 'user')
  if (last === undefined)
    throw problem(
      'invalid_request',
      'messages must hold a message of role user: the last one is the one that is answered.',
    )
  const parsed = userMessageSchema.safeParse(last)
  if (!parsed.success) {
    const { detail, errors } = describeIssues('body', parsed.error)
    throw problem('invalid_request', detail.replace('The body', 'The last user message'), { extensions: { errors } })
  }
  const { id, parts } = parsed.data
  const text = parts.map((part) => (part.type === 'text' ? part.text : '')).join('')
  const length = characterCount(text)
  if (length > MAX_MESSAGE_LENGTH || (length === 0 && parts.every((part) => part.type === 'text'))) {
    throw problem(
      'invalid_request',
      `The last user message must be 1 to ${MAX_MESSAGE_LENGTH} characters long; this one has ${length}.`,
    )
  }
  return {
    message: { ...(id === undefined || id === '' ? {} : { id }), text, parts: parts.map(toUiPart) },
    ifBusy: body.ifBusy,
  }
}

function toUiPart(part: z.infer<typeof userMessageSchema>['parts'][number]): TurnRequest['message']['parts'][number] {
  if (part.type === 'text') return { type: 'text', text: part.text }
  return {
    type: 'file',
    mediaType: part.mediaType,
    url: part.url,
    ...(part.filename === undefined ? {} : { filename: part.filename }),
  }
}
