// How tests start jobs and look at them, through the operations and the record.
import type { AbortOutput } from '@offshoot/shared/contracts/abort'
import { isTerminal } from '@offshoot/shared/contracts/job-state'
import { type ProgramSpawnInput, programSpawnInputSchema } from '@offshoot/shared/contracts/spawn'
import type { AgentJob } from '@offshoot/shared/db/agent-jobs'
import { loadMessages } from '@offshoot/shared/db/convos'
import { newId } from '@offshoot/shared/ids'
import { abortAgent } from '@offshoot/shared/operations/abort-agent'
import { spawnAgent } from '@offshoot/shared/operations/spawn-agent'
import { startTurn, type TurnAnswer } from '@offshoot/shared/operations/start-turn'
import type { TestStage } from './test-stage.ts'
import { waitUntil } from './wait-until.ts'

type MessageParts = Awaited<ReturnType<typeof loadMessages>>[number]['parts']

export type SpawnMore = Partial<ProgramSpawnInput> & { userId?: string }

/** The input of a spawn of `forge/<handle>`, as a model writes it. */
export function spawnOf(handle: string, message: string, more: Record<string, unknown> = {}) {
  return { bot: { botGroup: 'forge', botHandle: handle }, message, ...more }
}

/** Spawns `forge/<handle>` from a top-level turn of alice. */
export async function spawnRoot(
  { runtime }: TestStage,
  handle: string,
  message: string,
  { userId = 'alice', ...more }: SpawnMore = {},
): Promise<AgentJob> {
  const input = programSpawnInputSchema.parse(spawnOf(handle, message, { mode: 'async', ...more }))
  const origin = { userId, delegateUserIds: [], depth: 0, parentConvoId: 'convo-of-host', spaceId: null }
  const answer = await spawnAgent(runtime, origin, input)
  if (answer.kind !== 'accepted') throw new Error(`the spawn was not accepted: ${JSON.stringify(answer)}`)
  return answer.job
}

export async function readJob({ runtime }: TestStage, jobId: string): Promise<AgentJob> {
  return runtime.database.agentJob.findUniqueOrThrow({ where: { id: jobId } })
}

/** The job's row once it has ended. */
export async function endOf(stage: TestStage, jobId: string, within = 15_000): Promise<AgentJob> {
  return waitUntil(
    async () => {
      const job = await readJob(stage, jobId)
      return isTerminal(job.state) && job
    },
    { within, what: `the end of job ${jobId}` },
  )
}

/** Spawns and waits for the end. */
export async function runRoot(
  stage: TestStage,
  handle: string,
  message: string,
  more: SpawnMore = {},
): Promise<AgentJob> {
  const { id } = await spawnRoot(stage, handle, message, more)
  return endOf(stage, id)
}

/** Aborts as alice. */
export async function abort({ runtime }: TestStage, jobId: string, reason?: string): Promise<AbortOutput> {
  const reader = { userId: 'alice', admin: false }
  return abortAgent(runtime, reader, { jobId, ...(reason === undefined ? {} : { reason }) }, 'alice')
}

/** The jobs that a job has spawned, in the order of their tool call ids. */
export async function childrenOf({ runtime }: TestStage, parentJobId: string): Promise<AgentJob[]> {
  return runtime.database.agentJob.findMany({ where: { parentJobId }, orderBy: { parentToolCallId: 'asc' } })
}

/** What a job's history says, in order, but for how late something was told: that depends on how busy the machine is. */
export async function eventsOf({ runtime }: TestStage, jobId: string): Promise<string[]> {
  const where = { jobId, kind: { not: 'told-late' } }
  const events = await runtime.database.agentEvent.findMany({ where, orderBy: { id: 'asc' } })
  return events.map((event) => event.kind)
}

/** The parts of the message with which a job ended. */
export async function answerOf({ runtime }: TestStage, jobId: string): Promise<MessageParts> {
  const [message] = await loadMessages(runtime.database, { jobId, role: 'assistant' })
  return message?.parts ?? []
}

/** The text of the step under way, as viewers see it live. */
export async function liveTextOf({ runtime }: TestStage, jobId: string): Promise<string> {
  let text = ''
  for (const { chunks } of await runtime.liveStreams.read(jobId, 0)) {
    for (const chunk of chunks) {
      if (chunk.type === 'start-step') text = ''
      if (chunk.type === 'text-delta') text += chunk.delta
    }
  }
  return text
}

/** Waits until viewers see this text in the step under way. */
export async function untilLiveText(stage: TestStage, jobId: string, text: string): Promise<void> {
  await waitUntil(async () => (await liveTextOf(stage, jobId)).includes(text), { what: `live text "${text}"` })
}

/** A new convo of alice with `forge/<handle>`. */
export async function openConvo({ runtime }: TestStage, handle: string): Promise<string> {
  const bot = await runtime.database.bot.findUniqueOrThrow({
    where: { group_handle: { group: 'forge', handle } },
  })
  const convo = { id: newId(), botId: bot.id, botLabel: `forge/${handle}`, ownerId: 'alice' }
  await runtime.database.convo.create({ data: convo })
  return convo.id
}

/** Alice says something in her convo: a new turn, or a steer of the one that runs. */
export async function say({ runtime }: TestStage, convoId: string, text: string): Promise<TurnAnswer> {
  const message = { text, parts: [{ type: 'text' as const, text }] }
  return startTurn(runtime, { convoId, userId: 'alice', message, ifBusy: 'steer' })
}

/** The same, for a turn that must begin. */
export async function startTurnOf(stage: TestStage, convoId: string, text: string): Promise<string> {
  const answer = await say(stage, convoId, text)
  if (answer.kind !== 'started') throw new Error(`no turn began: ${JSON.stringify(answer)}`)
  return answer.jobId
}
