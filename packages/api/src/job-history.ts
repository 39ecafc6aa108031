// A job's journal and history, as its reader sees them.
import { agentMessageParts } from '@offshoot/shared/agent-message'
import type { AgentJob } from '@offshoot/shared/db/agent-jobs'
import type { Database } from '@offshoot/shared/db/database'
import { loadSteps, loadToolCalls } from '@offshoot/shared/db/journal'
import { decodeStored } from '@offshoot/shared/db/stored-value'
import type { EventPage, StepView } from './contracts.ts'

/** The steps with what they said, their tool calls and times. What the provider sent besides stays inside. */
export async function readSteps(
  database: Database,
  job: Pick<AgentJob, 'id'>,
): Promise<{ jobId: string; steps: StepView[] }> {
  const [rows, stored, toolRows, toolCalls] = await Promise.all([
    database.agentStep.findMany({
      where: { jobId: job.id },
      orderBy: { index: 'asc' },
      select: { index: true, generation: true, startedAt: true, finishedAt: true },
    }),
    loadSteps(database, job.id),
    database.agentToolCall.findMany({
      where: { jobId: job.id },
      orderBy: { startedAt: 'asc' },
      omit: { output: true },
    }),
    loadToolCalls(database, job.id),
  ])
  const steps = rows.flatMap((row): StepView[] => {
    const step = stored.find((each) => each.index === row.index)
    if (step === undefined) return []
    return [
      {
        index: row.index,
        generation: row.generation,
        whole: step.responseMessages !== null,
        ...(step.finishReason === null ? {} : { finishReason: step.finishReason }),
        ...(step.usage === null ? {} : { usage: step.usage }),
        startedAt: row.startedAt.toISOString(),
        ...(row.finishedAt === null ? {} : { finishedAt: row.finishedAt.toISOString() }),
        parts: agentMessageParts([step], toolCalls),
        toolCalls: toolRows.filter((call) => call.stepIndex === row.index).map(toToolCallView),
      },
    ]
  })
  return { jobId: job.id, steps }
}

/** The history, oldest first, after the cursor. */
export async function readEvents(
  database: Database,
  job: Pick<AgentJob, 'id'>,
  page: { cursor?: string | undefined; limit: number },
): Promise<EventPage> {
  const rows = await database.agentEvent.findMany({
    where: { jobId: job.id, ...(page.cursor === undefined ? {} : { id: { gt: BigInt(page.cursor) } }) },
    orderBy: { id: 'asc' },
    take: page.limit + 1,
  })
  const events = rows.slice(0, page.limit).map((row) => ({
    id: row.id.toString(),
    at: row.at.toISOString(),
    kind: row.kind,
    ...(row.actorId === null ? {} : { actorId: row.actorId }),
    data: decodeStored(row.data),
  }))
  const last = events.at(-1)
  return { jobId: job.id, events, ...(rows.length > page.limit && last !== undefined ? { nextCursor: last.id } : {}) }
}

function toToolCallView(row: {
  toolCallId: string
  toolName: string
  startedAt: Date
  finishedAt: Date | null
  error: unknown
}): StepView['toolCalls'][number] {
  const ended = row.error === null ? 'finished' : 'failed'
  return {
    toolCallId: row.toolCallId,
    toolName: row.toolName,
    state: row.finishedAt === null ? 'running' : ended,
    startedAt: row.startedAt.toISOString(),
    ...(row.finishedAt === null ? {} : { finishedAt: row.finishedAt.toISOString() }),
  }
}
