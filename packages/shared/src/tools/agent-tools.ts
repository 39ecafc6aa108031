// The sub-agent tools of a host, and listAgents and messageAgent, which are there for those who ask for them.
import { tool, type Tool, type ToolSet } from 'ai'
import { type ListAgentsInput, listAgentsInputSchema, type ListAgentsOutput } from '../contracts/list-agents.ts'
import { type MessageInput, messageInputSchema, type MessageReceipt } from '../contracts/message.ts'
import { READ_RESULT } from '../contracts/truncated-result.ts'
import { listSubAgents } from '../operations/list-agents.ts'
import { messageAgent } from '../operations/message-agent.ts'
import type { Runtime } from '../runtime.ts'
import { abortAgentTool, checkAgentTool, type WhoCalls } from './job-tools.ts'
import { modelInput } from './model-input.ts'
import { readResultTool } from './read-result.ts'
import { type runSpawn, spawnAgentToolForHost } from './spawn-agent.ts'

export interface AgentToolsOptions {
  /** Also listAgents and messageAgent. */
  extended?: boolean
  /**
   * Adds `readResult`, with which the model reads the rest of a sub-agent's result that is too long to be shown whole
   * (50,000 characters). Without it the model gets head and tail. Default: false.
   */
  readResult?: boolean
}

/** The tools for a host's own `streamText`. `run` spawns as `runSpawn` does. */
export function createAgentTools(
  runtime: Runtime,
  { whoCalls, run }: { whoCalls: WhoCalls; run: typeof runSpawn },
  { extended = false, readResult = false }: AgentToolsOptions = {},
): ToolSet {
  return {
    spawnAgent: spawnAgentToolForHost(runtime, { canReadOn: readResult, run }),
    checkAgent: checkAgentTool(runtime, whoCalls, { canReadOn: readResult }),
    abortAgent: abortAgentTool(runtime, whoCalls, { canReadOn: readResult }),
    ...(readResult ? { [READ_RESULT]: readResultTool(runtime, whoCalls) } : {}),
    ...(extended
      ? { listAgents: listAgentsTool(runtime, whoCalls), messageAgent: messageAgentTool(runtime, whoCalls) }
      : {}),
  }
}

export function listAgentsTool(runtime: Runtime, whoCalls: WhoCalls): Tool<ListAgentsInput, ListAgentsOutput> {
  return tool({
    description: 'Lists your sub-agents, the newest first: their state, how far they are, and what they said last.',
    inputSchema: modelInput(listAgentsInputSchema, []),
    execute: async (input: ListAgentsInput) => listSubAgents(runtime, (await whoCalls()).reader, input),
  })
}

export function messageAgentTool(runtime: Runtime, whoCalls: WhoCalls): Tool<MessageInput, MessageReceipt> {
  return tool({
    description: 'Sends a message to a sub-agent of yours that has not ended. It reads it before its next step.',
    inputSchema: modelInput(messageInputSchema, ['jobId', 'message']),
    execute: async (input: MessageInput) => {
      const { reader, actorId } = await whoCalls()
      return messageAgent(runtime, reader, input, actorId)
    },
  })
}
