// A chat turn: the user's message runs the convo's bot as a depth-0 job. A convo has at most one live turn; a message to
// a busy convo is a steer of the live job.
import type { UIMessage } from 'ai'
import { type Bot, botLabel } from '../contracts/bot.ts'
import { DEFAULT_MAX_STEPS } from '../contracts/spawn.ts'
import { grantedNames, grantOfBot } from '../contracts/tool-grant.ts'
import { appendMessage, findLiveTurn } from '../db/convos.ts'
import { isUniqueViolation } from '../db/database-errors.ts'
import { findBot } from '../db/bots.ts'
import { encodeStored, storable } from '../db/stored-value.ts'
import { newId } from '../ids.ts'
import type { Runtime } from '../runtime.ts'
import { priorityOfNewJob } from './deliver.ts'
import { describeUnknownLayers } from './layer-state.ts'
import { actsForAdmin, refuse, type Refusal } from './prepare-spawn.ts'
import { checkUserCap, startPending } from './spawn-agent.ts'
import { insertSteer } from './steer-agent.ts'
import { steerKey } from './inbox-key.ts'
import { lockConvo, lockTree, transact, type Tx } from './transact.ts'

export interface TurnRequest {
  convoId: string
  /** Who sends the message; the convo must be the sender's own. */
  userId: string
  /** Set when somebody else acts as `userId`, as with a spawn. */
  withoutAdminRights?: true
  message: { id?: string; text: string; parts: UIMessage['parts'] }
  ifBusy: 'steer' | 'reject'
  /** Replaces the last answer instead of adding a message. */
  regenerate?: boolean
  traceparent?: string
}

export type TurnAnswer =
  | { kind: 'started' | 'repeated' | 'steered'; jobId: string }
  | { kind: 'busy'; jobId: string }
  | { kind: 'not_found' }
  | { kind: 'refused'; refusal: Refusal }

export async function startTurn(runtime: Runtime, request: TurnRequest): Promise<TurnAnswer> {
  const answer = await tryTurn(runtime, storable(request))
  if (answer.kind === 'refused') runtime.metrics.countRefusal(answer.refusal.reason)
  return answer
}

async function tryTurn(runtime: Runtime, request: TurnRequest): Promise<TurnAnswer> {
  const convo = await runtime.database.convo.findFirst({ where: { id: request.convoId, ownerId: request.userId } })
  if (convo === null) return { kind: 'not_found' }
  const ref = { botId: convo.botId }
  const bot =
    (await runtime.extensions.resolveBot(ref, { userId: request.userId })) ??
    (await findBot(runtime.database, ref, request.userId))
  if (bot === undefined) return { kind: 'refused', refusal: refuse('unknown_bot', `Bot not found: ${convo.botLabel}.`) }
  const unknown = describeUnknownLayers(runtime.extensions, bot.layers)
  if (unknown !== undefined) return { kind: 'refused', refusal: refuse('invalid_request', unknown) }
  const repeated = await findRepeat(runtime, request)
  if (repeated !== undefined) return repeated
  const jobId = newId()
  for (;;) {
    const live = await findLiveTurn(runtime.database, convo.id)
    if (live !== undefined) {
      if (request.ifBusy === 'reject' || request.regenerate === true) return { kind: 'busy', jobId: live.id }
      if (await steerLive(runtime, live, request)) return { kind: 'steered', jobId: live.id }
      continue // it ended in between
    }
    try {
      return await transact(runtime, (tx) => insertTurn(runtime, tx, { jobId, convo, bot, request }))
    } catch (error) {
      if (!isUniqueViolation(error)) throw error
      // The first try was committed without an answer.
      const own = await runtime.database.agentJob.findUnique({ where: { id: jobId } })
      if (own !== null) return { kind: 'started', jobId }
      // Another message came first: it is the live turn now, or it was this very message.
      const same = await findRepeat(runtime, request)
      if (same !== undefined) return same
    }
  }
}

/** A message whose id the convo knows already: the job that answers it. */
async function findRepeat({ database }: Runtime, request: TurnRequest): Promise<TurnAnswer | undefined> {
  if (request.message.id === undefined || request.regenerate === true) return undefined
  const message = await database.aiMessage.findUnique({
    where: { convoId_clientMessageId: { convoId: request.convoId, clientMessageId: request.message.id } },
  })
  if (message === null) {
    const steer = await database.inboxItem.findUnique({ where: { key: steerKey(request.convoId, request.message.id) } })
    return steer === null ? undefined : { kind: 'repeated', jobId: steer.jobId }
  }
  // A steer of a turn that has ended.
  if (message.jobId !== null) return { kind: 'repeated', jobId: message.jobId }
  const job = await database.agentJob.findFirst({
    where: { convoId: request.convoId, depth: 0, inputSeq: message.seq },
    orderBy: { id: 'desc' },
  })
  return job === null ? undefined : { kind: 'repeated', jobId: job.id }
}

async function steerLive(
  runtime: Runtime,
  live: { id: string; rootJobId: string },
  request: TurnRequest,
): Promise<boolean> {
  const key = steerKey(request.convoId, request.message.id)
  return transact(runtime, async (tx) => {
    await lockTree(tx, live.rootJobId)
    return (await insertSteer(tx, live.id, { key, text: request.message.text, actorId: request.userId })) !== null
  })
}

interface TurnConvo {
  id: string
  ownerId: string
}

async function insertTurn(
  runtime: Runtime,
  tx: Tx,
  { jobId, convo, bot, request }: { jobId: string; convo: TurnConvo; bot: Bot; request: TurnRequest },
): Promise<TurnAnswer> {
  await lockConvo(tx, convo.id)
  const cap = await checkUserCap(runtime, tx, convo.ownerId)
  if ('refused' in cap) return { kind: 'refused', refusal: cap }
  const input = request.regenerate === true ? await takeBackAnswer(tx, convo.id) : await addMessage(tx, convo, request)
  if ('refused' in input) return { kind: 'refused', refusal: input }
  const { userId: triggeredById, traceparent } = request
  const grant = (await actsForAdmin(tx.db, request)) ? 'context' : 'self'
  await insertTurnJob(runtime, tx, {
    jobId,
    convo,
    bot,
    input,
    triggeredById,
    grant,
    ...cap,
    ...(traceparent === undefined ? {} : { traceparent }),
  })
  return { kind: 'started', jobId }
}

interface TurnJob {
  jobId: string
  convo: TurnConvo
  bot: Bot
  /** The message that the turn answers. */
  input: { seq: number; text: string }
  triggeredById: string
  grant: 'self' | 'context'
  /** Unfinished jobs of the convo's owner. */
  activeJobs: number
  traceparent?: string
}

/** Inserts a turn's job with a tree of its own. The convo is locked, has no live turn, and its owner may have one more job. */
export async function insertTurnJob({ config }: Pick<Runtime, 'config'>, tx: Tx, turn: TurnJob): Promise<void> {
  const { jobId: id, convo, bot, input, triggeredById, grant } = turn
  await tx.db.agentTree.create({ data: { rootJobId: id } })
  const job = await tx.db.agentJob.create({
    data: {
      id,
      rootJobId: id,
      botId: bot.id,
      botLabel: botLabel(bot),
      botRef: { botId: bot.id },
      botSnapshot: encodeStored(bot),
      ownerId: convo.ownerId,
      triggeredById,
      triggeredByIds: [triggeredById],
      grant,
      convoId: convo.id,
      ancestorIds: [],
      depth: 0,
      mode: 'turn',
      inputMessage: input.text,
      inputSeq: input.seq,
      toolNames: grantedNames(grantOfBot(bot)),
      maxSteps: DEFAULT_MAX_STEPS,
      layers: bot.layers,
      lane: bot.lane,
      priority: priorityOfNewJob(turn.activeJobs, 0),
      timeoutMs: config.JOB_TIMEOUT_MS,
      deadlineAt: new Date(0),
      traceparent: turn.traceparent ?? null,
    },
  })
  await startPending(tx, job)
}

async function addMessage(
  tx: Tx,
  convo: { id: string; ownerId: string },
  request: TurnRequest,
): Promise<{ seq: number; text: string }> {
  const { message } = request
  const { seq } = await appendMessage(tx.db, {
    convoId: convo.id,
    ownerId: convo.ownerId,
    role: 'user',
    parts: message.parts,
    ...(message.id === undefined ? {} : { clientMessageId: message.id }),
  })
  return { seq, text: message.text }
}

/** Removes the answer after the last user message, so that the turn can be run again. */
async function takeBackAnswer(tx: Tx, convoId: string): Promise<{ seq: number; text: string } | Refusal> {
  const last = await tx.db.aiMessage.findFirst({ where: { convoId, role: 'user' }, orderBy: { seq: 'desc' } })
  if (last === null)
    return refuse('invalid_request', 'There is no message in this convo yet, so there is no answer to regenerate.')
  await tx.db.aiMessage.deleteMany({ where: { convoId, seq: { gt: last.seq } } })
  const job = await tx.db.agentJob.findFirst({
    where: { convoId, depth: 0, inputSeq: last.seq },
    select: { inputMessage: true },
  })
  return { seq: last.seq, text: job?.inputMessage ?? '' }
}
