// Sub-agents in the hands of a program. docs/guide/handles.md explains each function.
import type { Offshoot } from '@offshoot/shared'
import { type AgentHandle, AgentTimeoutError } from '@offshoot/shared/agent-handle'
import type { SpawnContext } from '@offshoot/shared/spawn-context'
import { readUIMessageStream } from 'ai'

const researcher = { botGroup: 'forge', botHandle: 'researcher' }

export async function startReport(offshoot: Offshoot, caller: SpawnContext, topic: string): Promise<string> {
  const handle = await offshoot.spawn(caller, { bot: researcher, message: topic, mode: 'async', tags: { topic } })
  if (handle.id === '') throw new Error((await handle.error()) ?? 'The spawn was refused.')
  return handle.id // keep it where you keep your own things
}

export async function fetchReport(offshoot: Offshoot, userId: string, jobId: string, timeoutMs = 5_000) {
  const handle = await offshoot.attach(userId, jobId)
  if (handle === undefined) return 'There is no such report.'
  try {
    const outcome = await handle.await(timeoutMs)
    return outcome.state === 'completed' && 'result' in outcome ? outcome.result : outcome.error
  } catch (error) {
    if (error instanceof AgentTimeoutError) return 'Not yet.'
    throw error
  }
}

export async function hurry(offshoot: Offshoot, userId: string, jobId: string) {
  const handle = await offshoot.attach(userId, jobId)
  return handle?.steer('Come to an end.')
}

export async function closeChat(offshoot: Offshoot, userId: string, chatId: string) {
  const { agents } = await offshoot.listLive(userId, { parentConvoId: chatId })
  for (const agent of agents) await agent.abort('the chat was closed')
  return agents.map(({ job }) => job.tags['topic'])
}

export async function show(handle: AgentHandle, write: (text: string) => void): Promise<void> {
  for await (const message of readUIMessageStream({ stream: handle.stream() }))
    write(message.parts.map((part) => (part.type === 'text' ? part.text : '')).join(''))
}
