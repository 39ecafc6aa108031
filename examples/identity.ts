// Whom a sub-agent runs as, and who did what to it. docs/guide/identity.md explains each function.
import type { Offshoot } from '@offshoot/shared'
import type { SpawnContext } from '@offshoot/shared/spawn-context'
import { z } from 'zod'
import type { Api } from './http-client.ts'

const researcher = { botGroup: 'forge', botHandle: 'researcher' }

export async function runAsSomebodyElse(offshoot: Offshoot, caller: SpawnContext, userId: string, question: string) {
  return offshoot.run(caller, { bot: researcher, message: question, runAsUserId: userId })
}

const historySchema = z.object({ events: z.array(z.object({ kind: z.string(), actorId: z.string().optional() })) })

export async function whoDidWhat({ url, key }: Api, jobId: string): Promise<string[]> {
  const response = await fetch(`${url}/v1/agents/${jobId}/events`, { headers: { authorization: `Bearer ${key}` } })
  const { events } = historySchema.parse(await response.json())
  return events.map(({ kind, actorId }) => `${kind} by ${actorId ?? 'Offshoot'}`)
}
