// A plan that changes while sub-agents work on it: what one has found steers another, drops one, or starts one.
// docs/guide/delegation.md explains it.
import type { Offshoot } from '@offshoot/shared'
import type { AgentHandle, AgentOutcome } from '@offshoot/shared/agent-handle'
import type { SpawnContext } from '@offshoot/shared/spawn-context'

const researcher = { botGroup: 'forge', botHandle: 'researcher' }

/** What a finding changes, by topic. What is asked anew gets a topic of its own. */
export interface Change {
  tell?: Record<string, string>
  drop?: string[]
  ask?: Record<string, string>
}

interface Agent {
  handle: AgentHandle
  ended: Promise<{ topic: string; outcome: AgentOutcome }>
}

/** Asks all at once and hears of each as it ends; `replan`, a rule or a model, says what its finding changes. */
export async function coordinate(
  offshoot: Offshoot,
  caller: SpawnContext,
  questions: Record<string, string>,
  replan: (topic: string, finding: string | null) => Change | Promise<Change>,
): Promise<Record<string, AgentOutcome>> {
  const running = new Map<string, Agent>()
  const outcomes: Record<string, AgentOutcome> = {}

  async function apply({ tell = {}, drop = [], ask = {} }: Change) {
    for (const [topic, text] of Object.entries(tell)) await running.get(topic)?.handle.steer(text)
    for (const topic of drop) await running.get(topic)?.handle.abort('the plan has changed')
    for (const [topic, message] of Object.entries(ask)) {
      const handle = await offshoot.spawn(caller, { bot: researcher, message, mode: 'async', tags: { topic } })
      running.set(topic, { handle, ended: handle.await().then((outcome) => ({ topic, outcome })) })
    }
  }

  await apply({ ask: questions })
  while (running.size > 0) {
    const { topic, outcome } = await Promise.race([...running.values()].map(({ ended }) => ended))
    running.delete(topic)
    outcomes[topic] = outcome
    if (outcome.state === 'completed') await apply(await replan(topic, outcome.result))
  }
  return outcomes
}

const HOW_TO_COORDINATE = `
You plan parties. The bot forge/researcher finds things out for you; it sees only what you tell it.
Start with all questions at once, mode "async" with notifyParent: true, and end your turn: you are called again when the first is answered.
If that answer changes the plan, change what still runs (listAgents shows it): messageAgent for those who must know, abortAgent for those whom nobody needs any more, spawnAgent for what is new. Then end your turn again.
Your last message is the plan, with all that was found.`

/** The same in a bot's hands. Its `toolNames`: spawnAgent, messageAgent, abortAgent, listAgents. */
export async function planParty(offshoot: Offshoot, caller: SpawnContext, wish: string): Promise<AgentOutcome> {
  return offshoot.run(caller, {
    bot: { botGroup: 'forge', botHandle: 'coordinator' },
    message: wish,
    overrides: { systemPromptAppend: HOW_TO_COORDINATE },
  })
}
